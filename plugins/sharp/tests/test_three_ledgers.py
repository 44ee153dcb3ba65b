"""Three ledgers without a model: the task, its team, and the workers' credits with SHARP and its baselines."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from marl_verl_sharp.algorithm import SHARP
from marl_verl_sharp.counterfactual import Counterfactual
from marl_verl_sharp.ledgers import (
    DIGITS,
    EVERYTHING,
    GOSSIP,
    IDLER,
    NOTHING,
    PLANNER,
    READER,
    WORKERS,
    PlannerAndWorkers,
    ThreeLedgers,
)
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_workflow, row_of, shown

from marl_verl import Episode
from marl_verl.algo.advantage import RowTable
from marl_verl.algo.algorithms import Algorithm
from marl_verl.algo.credit import ReplayCredit
from marl_verl.algo.sampling import Independent
from marl_verl.episode import Act

TASKS = ThreeLedgers()
TASK = TASKS.generate("train", 1, 0)[0]
LEDGERS = {worker: ledger[TASK.data["item"]] for worker, ledger in TASK.data["ledgers"].items()}
RIGHT, WRONG = LEDGERS[READER], LEDGERS[GOSSIP]


def worker(right: bool) -> Callable[[Act], str]:
    """Looks up what it is asked for and reports what it finds; a careless one looks up everything."""

    def says(act: Act) -> str:
        *_, verb, word = shown(act).split()
        return word if verb == "found" or right else EVERYTHING

    return says


def believes(*order: str) -> Callable[[Act], str]:
    """A planner that asks for the item, and answers the first number that one of these workers reports."""

    def says(act: Act) -> str:
        words = shown(act).split()
        if act.turn == 0:
            return words[2]
        reports = dict(zip(words[3::2], words[4::2], strict=True))
        return next((reports[name] for name in order if reports[name] in DIGITS), NOTHING)

    return says


def team(planner: Callable[..., str] | str, **replies: Any) -> ScriptedPolicy:
    return ScriptedPolicy({PLANNER: planner, **{name: worker(True) for name in WORKERS}, **replies})


CREDULOUS = believes(GOSSIP, READER)
WISE = believes(READER)


def credited(credit: ReplayCredit, policy: ScriptedPolicy, method: Algorithm = SHARP) -> Episode:
    context = ScriptedContext(PlannerAndWorkers(), TASK, policy, tasks=TASKS, mix=method.rewards)

    async def go() -> Episode:
        (episode,) = (await Independent(1).sample(context)).episodes
        await credit.assign(context, episode)
        return episode

    return asyncio.run(go())


def credits(credit: ReplayCredit, policy: ScriptedPolicy) -> dict[str, float]:
    return {turn.agent: turn.rewards["mc"] for turn in credited(credit, policy).turns if "mc" in turn.rewards}


def test_only_the_readers_number_is_right() -> None:
    assert RIGHT != WRONG
    assert [TASKS.score(TASK, each) for each in (f" {RIGHT} ", WRONG, LEDGERS[IDLER], "", f"{RIGHT} {RIGHT}")] == [
        1,
        0,
        0,
        0,
        0,
    ]
    assert [TASKS.public_score(TASK, each) for each in (RIGHT, WRONG, LEDGERS[IDLER], NOTHING)] == [1, 1, 0, 0]
    assert all(
        task.data["ledgers"][READER][item] != old
        for task in TASKS.generate("train", 200, 5)
        for item, old in task.data["ledgers"][GOSSIP].items()
    )


def test_the_team_can_be_replayed_and_answers_with_the_planners_text() -> None:
    assert check_workflow(PlannerAndWorkers(), TASK, team(WISE)).answer == RIGHT
    assert check_workflow(PlannerAndWorkers(), TASK, team(CREDULOUS)).answer == WRONG
    alone = check_workflow(PlannerAndWorkers(alone=True), TASK, team(WISE), may_not_act=WORKERS)
    assert (alone.answer, len(alone.turns)) == (RIGHT, 2)
    assert [call.agent for call in alone.journal.calls()] == [PLANNER] * 3


def test_masking_finds_the_useful_the_idle_and_the_harmful_worker() -> None:
    assert isinstance(SHARP.credit[0], Counterfactual)
    assert credits(SHARP.credit[0], team(WISE)) == {
        READER: 1.0,
        IDLER: 0.0,
        GOSSIP: 0.0,
    }  # the gossip's report has no effect
    assert credits(SHARP.credit[0], team(CREDULOUS)) == {READER: 0.0, IDLER: 0.0, GOSSIP: -1.0}
    silent = team(CREDULOUS, gossip=NOTHING)
    assert credits(SHARP.credit[0], silent) == {READER: 1.0, IDLER: 0.0, GOSSIP: 0.0}
    assert credits(SHARP.credit[0], team(WISE, reader=worker(False))) == {READER: 0.0, IDLER: 0.0, GOSSIP: 0.0}


# Rewards and groups, against the baselines


def table(method: Algorithm, *policies: ScriptedPolicy) -> tuple[RowTable, list[str]]:
    """The rows of one task, one session for each policy, and the agent of each row."""
    turns = []
    for session, policy in enumerate(policies):
        context = ScriptedContext(PlannerAndWorkers(), TASK, policy, TASKS, mix=method.rewards)
        (episode,) = asyncio.run(Independent(1).sample(context)).episodes
        for credit in method.replay_credits:
            asyncio.run(credit.assign(context, episode))
        for turn in episode.turns:
            turn.session = session
        turns += episode.turns
    return RowTable.from_rows([row_of(turn) for turn in turns]), [turn.agent for turn in turns]


SESSIONS = (
    team(WISE),  # right
    team(CREDULOUS),  # wrong, because of the gossip
    team(WISE, reader=worker(False)),  # wrong, because of the reader, whose call fails
    team(CREDULOUS, gossip=NOTHING),  # right, the gossip makes no call
)


def by_session(values: np.ndarray, agents: list[str], agent: str) -> list[float]:
    """The one value of an agent's turns in each session."""
    mine = values[[name == agent for name in agents]].reshape(len(SESSIONS), -1)
    assert (mine == mine[:, :1]).all()
    return [float(value) for value in mine[:, 0]]


def test_the_three_rewards_by_hand() -> None:
    rows, agents = table(SHARP, *SESSIONS)
    result = SHARP.compute(rows)
    wanted = {
        PLANNER: [0.9 + 0.9 * 0.5 / 3, 0.0, 0.0, 0.9 + 0.9 * 0.5 / 3],
        READER: [0.9 + 0.9 + 0.1, 0.1, 0.0, 0.9 + 0.9 + 0.1],
        IDLER: [0.9 + 0.1, 0.1, 0.1, 0.9 + 0.1],
        GOSSIP: [0.9 + 0.1, -0.9 + 0.1, 0.1, 0.9],
    }
    for agent, rewards in wanted.items():
        assert by_session(result.reward, agents, agent) == pytest.approx(rewards)
        value = np.array(rewards)
        advantage = (np.repeat(value, 2) - value.mean()) / (value.std(ddof=1) + 1e-6)
        np.testing.assert_allclose(result.advantage[[name == agent for name in agents]], advantage)
