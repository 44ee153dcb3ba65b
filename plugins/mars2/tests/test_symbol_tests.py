"""`symbol-tests` and `refine-symbols`: splits, scores, demonstrations, observations, and the tree of both agents."""

import asyncio
from collections.abc import Callable

import pytest
from marl_verl_mars2 import symbols
from marl_verl_mars2.symbols import FLIPPER, FLIPS, SHIFTER, SHIFTS, RefineSymbols, SymbolTests
from marl_verl_mars2.tree_search import TreeSearch
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_workflow

from marl_verl import Task
from marl_verl.algo.sampling import Candidate, Sample
from marl_verl.episode import Act

TASK = Task(
    "t",
    "tests after 9 across 7 opposite 8",
    {"tests": [["after", "9"], ["across", "7"], ["opposite", "8"]], "hidden": 1},
)
RIGHT, TASKS = "0 2 3", SymbolTests()


@pytest.mark.parametrize(
    ("answer", "score", "public", "message"),
    [
        (RIGHT, 1, 1, "pass pass unseen"),
        ("0 3 3", 0, 0.5, "pass fail unseen"),
        ("after 2 3", 0, 0.5, "fail pass unseen"),
    ],
)
def test_scores_and_results(answer: str, score: float, public: float, message: str) -> None:
    assert TASKS.score(TASK, answer) == score
    assert TASKS.public_score(TASK, answer) == public
    assert " ".join(symbols.results(TASK, answer)) == message


def test_the_workflow_replays_and_the_agents_take_turns() -> None:
    run = check_workflow(RefineSymbols(), TASK, ScriptedPolicy({SHIFTER: "0 7 8", FLIPPER: ["9 2 3", RIGHT]}))
    assert [act.agent for act, _ in run.turns] == [SHIFTER, FLIPPER, SHIFTER, FLIPPER]
    assert (run.answer, run.proposals) == (RIGHT, ["0 7 8", "9 2 3", "0 7 8", RIGHT])


def half(kinds: object) -> Callable[[Act, int, Candidate], str]:
    """An agent that masters some kinds, copies the digits of the others, and keeps digits that did not fail."""

    def say(act: Act, session: int, candidate: Candidate) -> str:
        words = act.observation[0]["content"].split()
        old, outcomes = (words[8:11], words[12:15]) if "attempt" in words else (["none"] * 3, ["fail"] * 3)
        answer = []
        for kind, digit, kept, result in zip(words[1:7:2], words[2:7:2], old, outcomes, strict=True):
            own = symbols.wanted(kind, digit) if kind in kinds else digit  # type: ignore[operator]
            answer.append(kept if kind not in kinds and result != "fail" and kept != "none" else own)  # type: ignore[operator]
        return " ".join(answer)

    return say


def solved(replies: dict[str, Callable[[Act, int, Candidate], str]], nodes: int = 8) -> tuple[int, list[Sample]]:
    """(how many of 40 tasks a tree solves, the trees)."""
    trees = []
    for task in TASKS.generate("train", 40, 0):
        context = ScriptedContext(RefineSymbols(), task, ScriptedPolicy(replies), tasks=TASKS)
        trees.append(asyncio.run(TreeSearch(nodes, arms=list(replies)).sample(context)))
    return sum(any(episode.success for episode in tree.episodes) for tree in trees), trees


def test_the_tree_of_both_solves_what_neither_solves_alone_or_beside_its_twin() -> None:
    both, trees = solved({SHIFTER: half(SHIFTS), FLIPPER: half(FLIPS)})
    assert both >= 28  # 32 here: the search may spend its 8 nodes on one agent
    assert all(len(tree.turns) == 8 for tree in trees)
    assert solved({SHIFTER: half(SHIFTS)})[0] == 0
    assert solved({SHIFTER: half(SHIFTS), FLIPPER: half(SHIFTS)})[0] == 0
