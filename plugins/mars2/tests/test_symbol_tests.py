"""`symbol-tests` and `refine-symbols`: splits, scores, demonstrations, observations, and the tree of both agents."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_mars2 import symbols
from marl_verl_mars2.refine import RefineSymbols
from marl_verl_mars2.symbols import FLIPPER, FLIPS, KINDS, SHIFTER, SHIFTS, SymbolTests
from marl_verl_mars2.tree_search import TreeSearch
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_sampler, check_workflow

from marl_verl import MarlError, Task
from marl_verl.algo.sampling import Candidate, Sample
from marl_verl.episode import Act
from marl_verl.options import build

TASK = Task(
    "t",
    "tests after 9 across 7 opposite 8",
    {"tests": [["after", "9"], ["across", "7"], ["opposite", "8"]], "hidden": 1},
)
RIGHT = "0 2 3"
TASKS = SymbolTests()

# tasks and scores


def test_no_held_out_task_is_in_training_whatever_the_seeds() -> None:
    train = {task.prompt for seed in range(3) for task in TASKS.generate("train", 1500, seed)}
    test = {task.prompt for seed in range(3) for task in TASKS.generate("test", 300, seed)}
    assert len(test) > 600
    assert not train & test


def test_the_same_seed_gives_the_same_tasks_and_every_task_needs_both_halves() -> None:
    tasks = TASKS.generate("train", 200, 3)
    assert tasks == TASKS.generate("train", 200, 3)
    assert tasks != TASKS.generate("train", 200, 4)
    for task in tasks:
        kinds = {kind for kind, _ in task.data["tests"]}
        assert kinds & set(SHIFTS)
        assert kinds & set(FLIPS)


def test_a_split_with_too_few_tasks_raises() -> None:
    with pytest.raises(MarlError, match=r"symbol-tests: found only \d+ of 200 different test tasks"):
        SymbolTests(length=2, hidden=0).generate("test", 200, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rule_is_a_permutation_that_moves_every_digit(kind: str) -> None:
    found = [symbols.wanted(kind, digit) for digit in symbols.DIGITS]
    assert sorted(found) == list(symbols.DIGITS)
    assert all(a != b for a, b in zip(found, symbols.DIGITS, strict=True))  # the careless answer never passes


@pytest.mark.parametrize(
    ("answer", "score", "public", "message"),
    [
        (RIGHT, 1, 1, "pass pass unseen"),
        ("0 2 8", 0, 1, "pass pass unseen"),  # a private test fails
        ("0 3 3", 0, 0.5, "pass fail unseen"),
        ("0 2", 0, 0, "fail fail unseen"),  # too short to pass anything
        ("0 2 3 3", 0, 0, "fail fail unseen"),
        ("", 0, 0, "fail fail unseen"),
        ("after 2 3", 0, 0.5, "fail pass unseen"),
    ],
)
def test_scores_and_results(answer: str, score: float, public: float, message: str) -> None:
    assert TASKS.score(TASK, answer) == score
    assert TASKS.public_score(TASK, answer) == public
    assert " ".join(symbols.results(TASK, answer)) == message


def test_what_is_no_text_is_no_answer() -> None:
    for judge in (TASKS.score, TASKS.public_score):
        with pytest.raises(MarlError, match="symbol-tests scores digits as text, got list"):
            judge(TASK, ["0", "2", "3"])


@pytest.mark.parametrize("options", [{"length": 1}, {"length": 9}, {"hidden": 3}, {"hidden": -1}, {"spill": 1.5}])
def test_options_that_make_no_task_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(MarlError, match=rf"symbol-tests: {next(iter(options))} must be"):
        build(SymbolTests, options, "marl.task.options")


# demonstrations


def right(pairs: list[tuple[str, str]], kinds: object) -> float:
    """Share of the digits of some kinds that are right."""
    found = []
    for seen, answer in pairs:
        stated = seen.split()[1:7]
        tests = zip(stated[::2], stated[1::2], answer.split(), strict=True)
        found += [word == symbols.wanted(kind, digit) for kind, digit, word in tests if kind in kinds]  # type: ignore[operator]
    return sum(found) / len(found)


def test_each_agent_is_good_at_its_half_and_careless_at_the_other() -> None:
    shifter, flipper = (TASKS.demonstrations(agent, 3000, 0, 0.7) for agent in (SHIFTER, FLIPPER))
    firsts = [[pair for pair in pairs if "attempt" not in pair[0]] for pairs in (shifter, flipper)]
    assert right(firsts[0], SHIFTS) == pytest.approx(0.7, abs=0.04)
    assert right(firsts[0], FLIPS) == pytest.approx(0.07, abs=0.02)
    assert right(firsts[1], FLIPS) == pytest.approx(0.7, abs=0.04)
    assert right(firsts[1], SHIFTS) == pytest.approx(0.07, abs=0.02)


def test_perfect_demonstrations_leave_alone_what_passes() -> None:
    pairs = [pair for pair in TASKS.demonstrations(SHIFTER, 2000, 1, 1.0) if "attempt" in pair[0]]
    for seen, answer in pairs:
        words = seen.split()
        for kind, old, outcome, new in zip(words[1:7:2], words[8:11], words[12:15], answer.split(), strict=True):
            if outcome == "pass":
                assert new == old
            if kind in SHIFTS:
                assert new == symbols.wanted(kind, words[words.index(kind) + 1]) or words[1:7].count(kind) > 1


def test_demonstrations_are_of_training_tasks_in_the_task_s_own_words() -> None:
    held_out = {task.prompt for seed in range(10) for task in TASKS.generate("test", 400, seed)}
    known = set(TASKS.vocabulary())
    for agent in (SHIFTER, FLIPPER):
        pairs = TASKS.demonstrations(agent, 2000, 0, 0.5)
        assert pairs == TASKS.demonstrations(agent, 2000, 0, 0.5)
        assert not {" ".join(seen.split()[:7]) for seen, _ in pairs} & held_out
        assert {word for pair in pairs for text in pair for word in text.split()} <= known
        assert all(len(answer.split()) == 3 for _, answer in pairs)
    with pytest.raises(MarlError, match=r"unknown agent of symbol-tests 'shiftr': did you mean 'shifter'"):
        TASKS.demonstrations("shiftr", 1, 0, 0.5)


# the workflow


def test_the_workflow_replays_and_the_agents_take_turns() -> None:
    run = check_workflow(RefineSymbols(), TASK, ScriptedPolicy({SHIFTER: "0 7 8", FLIPPER: ["9 2 3", RIGHT]}))
    assert [act.agent for act, _ in run.turns] == [SHIFTER, FLIPPER, SHIFTER, FLIPPER]
    assert run.answer == RIGHT
    assert run.proposals == ["0 7 8", "9 2 3", "0 7 8", RIGHT]


def test_a_refinement_is_shown_the_problem_the_attempt_and_its_feedback() -> None:
    run = check_workflow(RefineSymbols(rounds=1), TASK, ScriptedPolicy({SHIFTER: "0 7 maybe", FLIPPER: RIGHT}))
    first, again = (act.observation[0]["content"] for act, _ in run.turns)
    assert first == TASK.prompt
    assert again == f"{TASK.prompt} attempt 0 7 none results pass fail unseen"


def test_what_passes_the_public_tests_ends_it_and_useless_actions_are_marked() -> None:
    run = check_workflow(RefineSymbols(), TASK, ScriptedPolicy({SHIFTER: "0 2 8", FLIPPER: "?"}), may_not_act=[FLIPPER])
    assert (len(run.turns), run.answer) == (1, "0 2 8")
    run = check_workflow(RefineSymbols(rounds=1), TASK, ScriptedPolicy({SHIFTER: "0 2", FLIPPER: "a b c"}))
    assert set(run.invalid.values()) == {"not one digit a test"}
    assert len(run.invalid) == 2


@given(st.text(max_size=20))
@settings(max_examples=50)
def test_any_text_is_shown_in_words_of_the_vocabulary(message: str) -> None:
    words = symbols.again_sees(TASK, message).split()
    assert len(words) == 15
    assert set(words) <= set(TASKS.vocabulary())


# the tree of both


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


BOTH = {SHIFTER: half(SHIFTS), FLIPPER: half(FLIPS)}


def solved(replies: dict[str, Callable[[Act, int, Candidate], str]], nodes: int = 8) -> tuple[int, list[Sample]]:
    """(how many of 40 tasks a tree solves, the trees)."""
    trees = []
    for task in TASKS.generate("train", 40, 0):
        context = ScriptedContext(RefineSymbols(), task, ScriptedPolicy(replies), tasks=TASKS)
        trees.append(asyncio.run(TreeSearch(nodes, arms=list(replies)).sample(context)))
    return sum(any(episode.success for episode in tree.episodes) for tree in trees), trees


def test_the_tree_of_both_solves_what_neither_solves_alone_or_beside_its_twin() -> None:
    both, trees = solved(BOTH)
    assert both >= 28  # 32 here: the search may spend its 8 nodes on one agent
    assert all(len(tree.turns) == 8 for tree in trees)
    assert solved({SHIFTER: half(SHIFTS)})[0] == 0
    assert solved({SHIFTER: half(SHIFTS), FLIPPER: half(SHIFTS)})[0] == 0


@pytest.mark.parametrize("options", [{}, {"strategy": "stack", "prior": "beta"}, {"guide": "public"}])
def test_the_search_keeps_its_promises_on_this_workflow(options: dict[str, str]) -> None:
    sampler = build(TreeSearch, {"nodes": 8, "arms": [SHIFTER, FLIPPER], **options}, "marl.sampler.options")
    check_sampler(sampler, RefineSymbols(), TASK, ScriptedPolicy(BOTH), tasks=TASKS, asked=8)


def test_inference_hands_in_the_node_with_the_best_public_score() -> None:
    context = ScriptedContext(RefineSymbols(), TASK, ScriptedPolicy(BOTH), tasks=TASKS)
    (episode,) = asyncio.run(TreeSearch(24, arms=[SHIFTER, FLIPPER], guide="public").sample(context)).episodes
    assert TASKS.public_score(TASK, episode.answer) == 1
    assert episode.success
