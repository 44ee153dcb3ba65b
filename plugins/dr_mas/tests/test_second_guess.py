"""Second-guess: the task set is right, and so are its workflow and the verifier's reward."""

import asyncio
import itertools
from pathlib import Path

import pytest
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_workflow, shown

from marl_verl import Task
from marl_verl.algo.sampling import Independent
from marl_verl.episode import Act
from marl_verl.plugins.one_file import load_file, read_file

FILE = Path(__file__).parents[3] / "recipes" / "dr_mas" / "second_guess.py"
guess = load_file(read_file(FILE.name, FILE))
APPROVE, PRIZES, REJECT, SOLVER = guess.APPROVE, guess.PRIZES, guess.REJECT, guess.SOLVER
UNSURE, VERIFIER, TASKS = guess.UNSURE, guess.VERIFIER, guess.SecondGuessTasks()
TASK = Task("t", "boxes 3 7 1 9", {"boxes": ["3", "7", "1", "9"], "things": ["sand", "rust", "gold", "straw"]})


def verifies(act: Act) -> str:
    """The right verdict."""
    return APPROVE if shown(act).split()[-1] in PRIZES else REJECT


def solves(act: Act) -> str:
    """The second box, and the third when that was rejected."""
    words = shown(act).split()
    return words[3] if "not" in words else words[2]


def test_a_team_that_has_learnt_its_roles_is_always_right() -> None:
    policy = ScriptedPolicy({SOLVER: solves, VERIFIER: verifies})
    for task in TASKS.generate("test", 20, 0):
        assert TASKS.score(task, check_workflow(guess.SecondGuess(), task, policy).answer) == 1.0


@pytest.mark.parametrize(("answer", "message"), itertools.product("37190", (APPROVE, REJECT, UNSURE, "")))
def test_the_verifier_earns_what_its_verdict_is_worth(answer: str, message: str) -> None:
    policy = ScriptedPolicy({SOLVER: answer, VERIFIER: message})
    context = ScriptedContext(guess.SecondGuess(), TASK, policy, TASKS, rewards={VERIFIER: guess.second_guess_verdict})
    turns = asyncio.run(Independent(1).sample(context)).turns
    (verdict,) = [turn for turn in turns if turn.agent == VERIFIER]
    assert verdict.rewards["role"] == (1.0 if message == guess.right_verdict(TASK, answer) else -1.0)
    assert all("role" not in turn.rewards for turn in turns if turn.agent == SOLVER)
