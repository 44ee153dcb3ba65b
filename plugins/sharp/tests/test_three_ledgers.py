"""Three ledgers without a model: the task, its team, and the workers' credits with SHARP and its baselines."""

from collections.abc import Callable
from typing import Any

from marl_verl_sharp.algorithm import SHARP
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
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_workflow, shown

from marl_verl.episode import Act
from plugins.sharp.tests.test_replay_credit import by_agent, credited

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


CREDULOUS, WISE = believes(GOSSIP, READER), believes(READER)


def credits(policy: ScriptedPolicy) -> dict[str, float]:
    context = ScriptedContext(PlannerAndWorkers(), TASK, policy, tasks=TASKS, mix=SHARP.rewards)
    return by_agent(credited(SHARP.replay_credits[0], context)[0], "mc")


def test_only_the_readers_number_is_right() -> None:
    assert RIGHT != WRONG
    answers = (f" {RIGHT} ", WRONG, LEDGERS[IDLER], "", f"{RIGHT} {RIGHT}")
    assert [TASKS.score(TASK, answer) for answer in answers] == [1, 0, 0, 0, 0]
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
    assert credits(team(WISE)) == {READER: 1.0, IDLER: 0.0, GOSSIP: 0.0}  # the gossip's report has no effect
    assert credits(team(CREDULOUS)) == {READER: 0.0, IDLER: 0.0, GOSSIP: -1.0}
    assert credits(team(CREDULOUS, gossip=NOTHING)) == {READER: 1.0, IDLER: 0.0, GOSSIP: 0.0}
    assert credits(team(WISE, reader=worker(False))) == {READER: 0.0, IDLER: 0.0, GOSSIP: 0.0}
