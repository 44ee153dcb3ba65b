"""Second-guess: the task set is right, and so are its workflow and the verifier's reward."""

import asyncio
import itertools
from typing import Any

import pytest
from marl_verl_dr_mas.algorithm import DR_MAS
from marl_verl_dr_mas.second_guess import (
    APPROVE,
    PRIZES,
    REJECT,
    SOLVER,
    UNSURE,
    VERIFIER,
    SecondGuess,
    SecondGuessTasks,
    right_verdict,
    second_guess_verdict,
)
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_workflow, shown
from marl_verl_testing.rows import algorithm

from marl_verl import Task
from marl_verl.algo.advantage import RowTable
from marl_verl.algo.sampling import Independent
from marl_verl.episode import Act

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


def test_a_team_that_has_learnt_its_roles_is_always_right() -> None:
    policy = ScriptedPolicy({SOLVER: solves, VERIFIER: verifies})
    for task in TASKS.generate("test", 20, 0):
        assert TASKS.score(task, check_workflow(SecondGuess(), task, policy).answer) == 1.0


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
