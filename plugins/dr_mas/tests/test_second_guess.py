"""Second-guess: the task set is right, and so are its workflow and the verifier's reward."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from marl_verl_dr_mas.algorithm import DR_MAS
from marl_verl_dr_mas.second_guess import (
    APPROVE,
    PRIZES,
    REJECT,
    REVISER,
    SOLVER,
    UNSURE,
    VERIFIER,
    SecondGuess,
    SecondGuessTasks,
    candidates,
    right_verdict,
    second_guess_verdict,
)
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_sampler, check_workflow, shown
from marl_verl_testing.rows import algorithm

from marl_verl import MarlError, Task
from marl_verl.algo.advantage import RowTable
from marl_verl.algo.sampling import Independent
from marl_verl.episode import Act
from marl_verl.options import build

TASKS = SecondGuessTasks()
TASK = Task("t", "boxes 3 7 1 9", {"boxes": ["3", "7", "1", "9"], "things": ["sand", "rust", "gold", "straw"]})


def verifies(act: Act) -> str:
    """The right verdict."""
    return APPROVE if shown(act).split()[-1] in PRIZES else REJECT


def solves(act: Act) -> str:
    """The second box, and the third when that was rejected."""
    words = shown(act).split()
    return words[3] if "not" in words else words[2]


# the task set


def test_no_row_of_boxes_is_in_both_splits() -> None:
    train, test = (
        {task.prompt for seed in (0, 1) for task in TASKS.generate(split, 300, seed)} for split in ("train", "test")
    )
    assert not train & test
    seen = {seen.partition(" not")[0] for seen, _ in TASKS.demonstrations(SOLVER, 3000, seed=0, good=0.5)}
    assert not seen & {task.prompt for task in TASKS.generate("test", 3000, 0)}


def test_the_same_seed_gives_the_same_tasks_and_another_one_others() -> None:
    assert TASKS.generate("train", 20, 3) == TASKS.generate("train", 20, 3)
    assert TASKS.generate("train", 20, 3) != TASKS.generate("train", 20, 4)
    tasks = TASKS.generate("train", 2000, 0)
    assert len({task.id for task in tasks}) == 2000
    for task in tasks:
        (prize,) = [box for box in task.data["boxes"] if right_verdict(task, box) == APPROVE]
        assert prize in candidates(task)
    seconds = sum(task.data["things"][1] in PRIZES for task in tasks)
    assert 900 < seconds < 1100  # one box is as likely as the other


def test_one_box_can_be_more_likely() -> None:
    for likely, least, most in ((0.95, 1880, 1920), (1.0, 2000, 2000)):
        tasks = SecondGuessTasks(likely=likely).generate("train", 2000, 0)
        assert least <= sum(task.data["things"][1] in PRIZES for task in tasks) <= most
    with pytest.raises(MarlError, match=r"marl\.task\.options: likely must be 0\.5 to 1, got 0\.4"):
        build(SecondGuessTasks, {"likely": 0.4}, "marl.task.options")


def test_scores() -> None:
    assert [TASKS.score(TASK, each) for each in ("1", " 1 ", "7", "", "none", "1 1")] == [1, 1, 0, 0, 0, 0]
    assert [TASKS.public_score(TASK, each) for each in ("1", "7", "3", "")] == [1, 1, 0, 0]
    with pytest.raises(MarlError, match="scores the number of a box as text, got int"):
        TASKS.score(TASK, 1)


def test_more_tasks_than_available_raises() -> None:
    with pytest.raises(MarlError, match=r"second-guess: found only \d+ of 5000 different test tasks"):
        TASKS.generate("test", 5000, 0)


@pytest.mark.parametrize("agent", [SOLVER, VERIFIER, REVISER])
def test_demonstrations_are_words_that_the_models_have(agent: str) -> None:
    words = TASKS.vocabulary()
    assert len(words) == len(set(words))
    for seen, answer in TASKS.demonstrations(agent, 500, seed=1, good=0.5):
        assert set(seen.split()) | set(answer.split()) <= set(words)


def test_good_demonstrations_solve_and_careless_ones_do_not() -> None:
    for seen, answer in TASKS.demonstrations(SOLVER, 300, seed=0, good=1.0):
        assert answer == seen.split()[3 if "not" in seen else 2]
    for seen, answer in TASKS.demonstrations(SOLVER, 300, seed=0, good=0.0):
        assert answer == seen.split()[1]
    for seen, answer in TASKS.demonstrations(VERIFIER, 300, seed=0, good=1.0):
        assert answer == (APPROVE if seen.split()[1] in PRIZES else REJECT)
    for seen, answer in TASKS.demonstrations(REVISER, 300, seed=0, good=1.0):
        assert answer == seen[: seen.index(" not")].split()[3]
    careless = {answer for _, answer in TASKS.demonstrations(VERIFIER, 300, seed=0, good=0.0)}
    assert careless == {APPROVE, UNSURE}


def test_an_agent_that_there_is_not_has_no_demonstrations() -> None:
    with pytest.raises(MarlError, match="unknown agent of second-guess 'verifer': did you mean 'verifier'"):
        TASKS.demonstrations("verifer", 1, 0, 0.5)


# the workflow


def test_a_team_that_has_learnt_its_roles_is_always_right() -> None:
    policy = ScriptedPolicy({SOLVER: solves, VERIFIER: verifies})
    for task in TASKS.generate("test", 20, 0):
        assert TASKS.score(task, check_workflow(SecondGuess(), task, policy).answer) == 1.0


def test_the_last_answer_is_not_verified() -> None:
    run = check_workflow(SecondGuess(), TASK, ScriptedPolicy({SOLVER: ["7", "3"], VERIFIER: REJECT}))
    assert [act.agent for act, _ in run.turns] == [SOLVER, VERIFIER, SOLVER]
    assert run.answer == "3"
    assert shown(run.turns[2][0]) == "boxes 3 7 1 9 not 7"


def test_a_reviser_makes_all_guesses_after_a_rejection() -> None:
    policy = ScriptedPolicy({SOLVER: "7", VERIFIER: REJECT, REVISER: ["3", "9"]})
    run = check_workflow(SecondGuess(rounds=3, after_rejection="reviser"), TASK, policy)
    assert [act.agent for act, _ in run.turns] == [SOLVER, VERIFIER, REVISER, VERIFIER, REVISER]
    assert (shown(run.turns[2][0]), run.answer) == ("boxes 3 7 1 9 not 7", "9")


def test_more_rounds_and_one() -> None:
    more = check_workflow(SecondGuess(rounds=3), TASK, ScriptedPolicy({SOLVER: ["7", "3", "9"], VERIFIER: REJECT}))
    assert shown(more.turns[4][0]) == "boxes 3 7 1 9 not 7 3"
    alone = check_workflow(SecondGuess(rounds=1), TASK, ScriptedPolicy({SOLVER: "1"}))
    assert (len(alone.turns), alone.answer) == (1, "1")
    with pytest.raises(MarlError, match=r"marl\.workflow\.options: rounds must be 1 or more, got 0"):
        build(SecondGuess, {"rounds": 0}, "marl.workflow.options")


@pytest.mark.parametrize(("unparseable", "acts"), [("approve", 2), ("reject", 3)])
def test_what_an_unparseable_verdict_is_taken_for_is_an_option(unparseable: Any, acts: int) -> None:
    policy = ScriptedPolicy({SOLVER: ["7", "1"], VERIFIER: UNSURE})
    run = check_workflow(SecondGuess(unparseable=unparseable), TASK, policy)
    assert len(run.turns) == acts
    assert run.answer == ("7" if unparseable == "approve" else "1")
    assert run.invalid == {(VERIFIER, "0"): "no verdict"}  # marked either way


def test_an_unknown_option_raises() -> None:
    with pytest.raises(
        MarlError, match=r"'o\.unparseable' must be one of 'approve', 'reject', got 'rejct': did you mean"
    ):
        build(SecondGuess, {"unparseable": "rejct"}, "o")


def test_a_solver_that_names_no_box_is_marked_and_can_be_rejected() -> None:
    run = check_workflow(SecondGuess(), TASK, ScriptedPolicy({SOLVER: ["approve", "1"], VERIFIER: verifies}))
    assert run.invalid == {(SOLVER, "0"): "no box"}
    assert shown(run.turns[1][0]) == "found none"
    assert run.answer == "1"


# the reward, and what the algorithm makes of it


def sampled(policy: ScriptedPolicy, episodes: int = 4) -> list[Any]:
    """Turns of one task, rewarded."""
    context = ScriptedContext(
        SecondGuess(), TASK, policy, TASKS, rewards={VERIFIER: second_guess_verdict}, mix=DR_MAS.rewards
    )
    sample = asyncio.run(Independent(episodes).sample(context))
    assert not sample.failures
    return [turn for episode in sample.episodes for turn in episode.turns]


@pytest.mark.parametrize(("answer", "message"), itertools.product("37190", (APPROVE, REJECT, UNSURE, "")))
def test_the_verifier_earns_what_its_verdict_is_worth(answer: str, message: str) -> None:
    turns = sampled(ScriptedPolicy({SOLVER: answer, VERIFIER: message}), episodes=1)
    (verdict,) = [turn for turn in turns if turn.agent == VERIFIER]
    assert verdict.rewards["role"] == (1.0 if message == right_verdict(TASK, answer) else -1.0)
    assert all("role" not in turn.rewards for turn in turns if turn.agent == SOLVER)


def test_the_sampler_keeps_its_promises_on_it() -> None:
    def guesses(act: Act, session: int, candidate: Any) -> str:
        return str(TASK.data["boxes"][(session + act.turn) % 4])

    policy = ScriptedPolicy({SOLVER: guesses, VERIFIER: verifies})
    sample = check_sampler(
        Independent(4), SecondGuess(), TASK, policy, tasks=TASKS, rewards={VERIFIER: second_guess_verdict}
    )
    # the episodes answer 3, 7, 1, 9: all but the third have a second guess
    assert [len(episode.turns) for episode in sample.episodes] == [3, 3, 2, 3]
    assert [episode.score for episode in sample.episodes] == [0.0, 1.0, 1.0, 0.0]


def test_weights_make_rewards_of_very_different_size() -> None:
    def guesses(act: Act, session: int, candidate: Any) -> str:
        return "1" if session % 2 else "7"

    turns = sampled(ScriptedPolicy({SOLVER: guesses, VERIFIER: APPROVE}))
    rows = [
        {
            **{"uid": "q", "session": turn.session, "index": turn.index, "turn": turn.turn, "agent": turn.agent},
            **{"rewards": turn.components, "length": 1, "invalid": turn.invalid is not None},
        }
        for turn in turns
    ]
    result = algorithm(DR_MAS, **{"weights": {"team": 0.1, "role": 5.0}}).compute(RowTable.from_rows(rows))
    assert result.reward.tolist() == [0.0, -5.0, 0.1, 5.1] * 2
    # by itself each agent is normalised to the same size
    assert result.advantage[:4] == pytest.approx([-0.866, -0.866, 0.866, 0.866], abs=1e-3)
