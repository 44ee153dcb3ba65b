"""Three ledgers without a model: the task, its team, and the workers' credits with SHARP and its baselines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from marl_verl_sharp.algorithm import SHARP
from marl_verl_sharp.counterfactual import Counterfactual
from marl_verl_sharp.ledger_team import PlannerAndWorkers
from marl_verl_sharp.ledgers import (
    DIGITS,
    EVERYTHING,
    GOSSIP,
    IDLER,
    NOTHING,
    PLANNER,
    READER,
    WORKERS,
    ThreeLedgers,
    look_up,
)
from marl_verl_sharp.sampled_shapley import SampledShapley
from marl_verl_sharp.worker_calls import WorkerCalls
from marl_verl_testing import (
    ScriptedContext,
    ScriptedPolicy,
    check_credit,
    check_sampler,
    check_workflow,
    row_of,
    shown,
)
from marl_verl_testing.rows import algorithm

from marl_verl import Episode, MarlError, Task
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


# The task


def test_a_question_is_in_one_split_only() -> None:
    def question(task: Task) -> tuple[Any, ...]:
        return task.data["item"], *task.data["ledgers"][READER].values()

    train = [task for seed in range(3) for task in TASKS.generate("train", 2000, seed)]
    test = [task for seed in range(3) for task in TASKS.generate("test", 300, seed)]
    assert not {question(task) for task in train} & {question(task) for task in test}
    assert len({task.id for task in train[:2000]}) == 2000
    assert TASKS.generate("test", 300, 1) == test[300:600]


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


def played(good: float, tasks: int = 40) -> list[bool]:
    """Whether a crowd whose every act is one of the demonstrations' habits solves tasks."""

    def demonstrated(name: str) -> Callable[[Act, int, Any], str]:
        def says(act: Act, session: int, candidate: Any) -> str:
            words = shown(act).split()
            if "beside" in words:
                return words[2] if good else words[4]
            if words[0] == PLANNER:
                return believes(READER)(act) if good else believes(GOSSIP, READER)(act)
            if words[1] == "asked":
                return words[2] if good or words[0] == GOSSIP else EVERYTHING
            return words[2] if good == (words[0] != GOSSIP) else NOTHING

        return says

    policy = ScriptedPolicy({name: demonstrated(name) for name in (PLANNER, *WORKERS)})
    found = []
    for task in TASKS.generate("test", tasks, 0):
        context = ScriptedContext(PlannerAndWorkers(), task, policy, tasks=TASKS)
        found += [episode.success for episode in asyncio.run(Independent(1).sample(context)).episodes]
        for _, act, _ in context.asked:  # the team shows what the demonstrations have taught
            assert set(shown(act).split()) <= set(TASKS.vocabulary())
    return found


def test_the_right_habits_solve_every_task_and_the_careless_ones_some_by_luck() -> None:
    assert all(played(1.0))
    assert sum(played(0.0, tasks=100)) < 25  # the old number of another item is right one time in ten


@pytest.mark.parametrize("agent", [PLANNER, *WORKERS])
def test_demonstrations_are_words_and_show_what_each_sees(agent: str) -> None:
    good = TASKS.demonstrations(agent, 400, 0, 1.0)
    careless = TASKS.demonstrations(agent, 400, 0, 0.0)
    assert {word for seen, answer in good + careless for word in f"{seen} {answer}".split()} <= set(TASKS.vocabulary())
    assert {seen.split()[0] for seen, _ in good} == {agent}  # the role prompt
    assert len({seen.split()[1] if agent != PLANNER else "beside" in seen for seen, _ in good}) == 2  # both of its acts
    assert any(NOTHING in seen.split() for seen, _ in good)  # as in a masked run
    for seen, answer in good:
        words = seen.split()
        if words[1] == "found":
            assert answer == (NOTHING if agent == GOSSIP else words[2])
        if words[1] == "asked":
            assert answer == words[2]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ThreeLedgers(items=1), "three-ledgers: items must be 2 to 6, got 1"),
        (lambda: ThreeLedgers(items=2).generate("test", 1000, 0), "found only .* of 1000 different test tasks"),
        (lambda: TASKS.score(TASK, 7), "three-ledgers scores a number as text, got int"),
        (lambda: TASKS.demonstrations("reeder", 1, 0, 1.0), "unknown agent of three-ledgers 'reeder': did you mean"),
    ],
)
def test_invalid_arguments_raise(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(MarlError, match=message):
        make()


# The team


def test_the_team_can_be_replayed_and_answers_with_the_planners_text() -> None:
    assert check_workflow(PlannerAndWorkers(), TASK, team(WISE)).answer == RIGHT
    assert check_workflow(PlannerAndWorkers(), TASK, team(CREDULOUS)).answer == WRONG
    alone = check_workflow(PlannerAndWorkers(alone=True), TASK, team(WISE), may_not_act=WORKERS)
    assert (alone.answer, len(alone.turns)) == (RIGHT, 2)
    assert [call.agent for call in alone.journal.calls()] == [PLANNER] * 3


def test_the_workflow_ends_for_any_texts() -> None:
    run = check_workflow(PlannerAndWorkers(), TASK, ScriptedPolicy(dict.fromkeys((PLANNER, *WORKERS), "7 x")))
    assert {agent for agent, _ in run.invalid} == {PLANNER, *WORKERS}
    assert all(call.raised for call in run.journal.calls())
    assert look_up({"red": "7"}, "red") == "7"
    with pytest.raises(LookupError, match="no page 'all'"):
        look_up({"red": "7"}, EVERYTHING)


def test_independent_sampling_of_it_keeps_what_samplers_promise() -> None:
    def says(name: str) -> Callable[[Act, int, Any], str]:
        return lambda act, session, candidate: (WISE if session % 2 else CREDULOUS)(act) if name == PLANNER else "red"

    policy = ScriptedPolicy({name: says(name) for name in (PLANNER, *WORKERS)})
    sample = check_sampler(Independent(3), PlannerAndWorkers(), TASK, policy, tasks=TASKS, asked=24)
    assert len(sample.turns) == 24


# Credit


@pytest.mark.parametrize("credit", [Counterfactual(component="mc", without=(PLANNER,)), SampledShapley(component="mc")])
def test_the_credits_keep_what_credits_promise(credit: ReplayCredit) -> None:
    check_credit(credit, PlannerAndWorkers(), TASK, team(CREDULOUS), TASKS)


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


def test_a_masked_run_samples_only_the_planner_again() -> None:
    context = ScriptedContext(PlannerAndWorkers(), TASK, team(WISE), tasks=TASKS, mix=SHARP.rewards)

    async def go() -> int:
        (episode,) = (await Independent(1).sample(context)).episodes
        context.asked.clear()
        return await SHARP.replay_credits[0].assign(context, episode)

    tokens = asyncio.run(go())
    assert sorted((act.agent, act.slot, who) for _, act, who in context.asked) == [
        (PLANNER, "1", f"without {name}") for name in sorted(WORKERS)
    ]
    assert tokens == sum(len(action.response_ids) for action in context.given[-3:])


SHAPLEY = {"name": "shapley", "component": "mc", "without": [PLANNER]}


def test_the_modes_and_shapley_differ_where_they_should() -> None:
    def of(**options: Any) -> ReplayCredit:
        [credit] = algorithm("sharp", **options).credit
        assert isinstance(credit, ReplayCredit)
        return credit

    # the planner's text stays, and with it the answer: no agent has a credit
    assert set(credits(of(credit_mode="rescore"), team(CREDULOUS)).values()) == {0.0}
    assert credits(of(credit_mode="full"), team(CREDULOUS)) == {READER: 0.0, IDLER: 0.0, GOSSIP: -1.0}
    # without the gossip the reader is worth 1, with it 0; without the reader the gossip costs nothing
    shares = {READER: 0.5, IDLER: 0.0, GOSSIP: -0.5}
    assert credits(of(credit=SHAPLEY), team(CREDULOUS)) == pytest.approx(shares)
    sampled = of(credit=SHAPLEY | {"exact_up_to": 0, "permutations": 200})
    assert credits(sampled, team(CREDULOUS)) == pytest.approx(shares, abs=0.12)


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


def test_broadcast_only_cannot_tell_the_gossips_fault_from_the_readers() -> None:
    method = algorithm("sharp", w_marginal=0.0, w_tool=0.0, credit=[])
    rows, agents = table(method, *SESSIONS)
    result = method.compute(rows)
    for agent in (PLANNER, *WORKERS):
        assert by_session(result.reward, agents, agent) == pytest.approx([0.9, 0.0, 0.0, 0.9])
    sharp_rows, _ = table(SHARP, *SESSIONS)
    gossip = by_session(SHARP.compute(sharp_rows).advantage, agents, GOSSIP)
    assert gossip[1] < gossip[2] - 0.5  # SHARP blames it for its own session only
    alike = by_session(result.advantage, agents, GOSSIP)
    assert alike[1] == alike[2]


def test_groups_of_sharp_of_turns_and_of_grpo() -> None:
    rows, _ = table(SHARP, *SESSIONS)
    sizes = {
        name: {len(result.members(place)) for place in range(len(rows))}
        for name, result in (
            ("agent", SHARP.compute(rows)),
            ("turn", algorithm("sharp", group="turn").compute(rows)),
            ("task", algorithm("grpo").compute(rows)),
        )
    }
    assert sizes == {"agent": {8}, "turn": {4}, "task": {32}}


def test_the_share_of_useful_idle_and_harmful_calls() -> None:
    rows, _ = table(SHARP, *SESSIONS)
    found = WorkerCalls().of_rows(rows, SHARP.compute(rows))
    assert found == {  # 12 calls: the reader was of use in two sessions, the gossip did harm in one
        "worker_calls/useful": 2 / 12,
        "worker_calls/idle": 9 / 12,
        "worker_calls/harmful": 1 / 12,
        "worker_calls/credit": 1 / 12,
    }
    method = algorithm("sharp", w_marginal=0.0, credit=[])
    rows, _ = table(method, *SESSIONS)
    assert WorkerCalls().of_rows(rows, method.compute(rows)) == {}
