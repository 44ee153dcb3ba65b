"""Second-guess: the solver knows two digits one of which is right, the verifier knows which.

The solver sees four digits, of which the second or the third is right, and says one. The verifier sees which one is
right and which one was said, and approves or rejects. After a rejection the solver says another digit. A solver without
a verifier is right half of the time at best, a team of two that have learnt their parts always.

What makes it a task for Dr. MAS are its rewards: whether the team was right for both, and besides, for the verifier
only, whether its verdict was (`second-guess-verdict`), as large as a recipe's weights say.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from marl_verl import MarlError, Task, TaskSet, Workflow
from marl_verl.errors import unknown
from marl_verl.tasks import Split

if TYPE_CHECKING:
    from marl_verl import Episode, Turn
    from marl_verl.episode import LiveTeam

SOLVER, VERIFIER = "solver", "verifier"
DIGITS = tuple("0123456789")
APPROVE, REJECT, UNSURE = "approve", "reject", "unsure"
NOTHING = "none"  # of the four; the place of an answer that is none of them
ORDINALS = ("first", "second", "third", "fourth")
PLACES = (1, 2)  # where the right digit may be
HELD_OUT = 10  # one list in ten


class SecondGuessTasks(TaskSet):
    """Lists of four different digits, and which of the two in the middle is right."""

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        """`count` different tasks. A list of digits is in one split only, whatever the seed.

        Raises:
            MarlError: the split has not that many.
        """
        rng = random.Random(f"second-guess {split} {seed}")
        tasks: dict[str, Task] = {}
        misses = 0
        while len(tasks) < count:
            task = _draw(rng, split)
            if task is not None and task.id not in tasks:
                tasks[task.id] = task
                continue
            misses += 1
            if misses > 10_000 + 20 * len(tasks):
                raise MarlError(f"second-guess: found only {len(tasks)} of {count} different {split} tasks")
        return list(tasks.values())

    def score(self, task: Task, answer: Any) -> float:
        """1 when the answer is the right digit, else 0. MarlError unless it is a text."""
        return float(_text(answer) == task.data["right"])

    def public_score(self, task: Task, answer: Any) -> float:
        """1 when the answer is one of the two digits, else 0: what the solver can know. MarlError unless a text."""
        return float(_text(answer) in candidates(task))

    def vocabulary(self) -> list[str]:
        """Every word that an observation or an answer can hold."""
        return [*DIGITS, *ORDINALS, "digits", "not", "right", "answer", NOTHING, APPROVE, REJECT, UNSURE]

    def demonstrations(self, agent: str, count: int, seed: int, good: float) -> list[tuple[str, str]]:
        """(observation, answer) pairs of a mixed crowd, on training lists only.

        A share `good` is right: the second digit, after a rejection the one that is left, the right verdict. The
        careless solver says the first digit, whatever was rejected; the careless verifier approves, or is unsure, which
        is no verdict.
        """
        if agent not in (SOLVER, VERIFIER):
            raise unknown("agent of second-guess", agent, (SOLVER, VERIFIER))
        rng = random.Random(f"second-guess demonstrations {agent} {seed}")
        show = _solver_shown if agent == SOLVER else _verifier_shown
        pairs: list[tuple[str, str]] = []
        while len(pairs) < count:
            task = _draw(rng, "train")
            if task is not None:
                pairs.append(show(task, rng, rng.random() < good))
        return pairs


def _solver_shown(task: Task, rng: random.Random, good: bool) -> tuple[str, str]:
    first = task.data["digits"][0]
    said = [rng.choice([first, *candidates(task)])] if rng.random() < 0.5 else []
    left = [digit for digit in candidates(task) if digit not in said]
    return solver_sees(task, said), left[0] if good else first


def _verifier_shown(task: Task, rng: random.Random, good: bool) -> tuple[str, str]:
    right, digits = task.data["right"], task.data["digits"]
    answer = right if rng.random() < 0.5 else rng.choice([NOTHING, *digits])
    careless = APPROVE if rng.random() < 0.7 else UNSURE
    return verifier_sees(task, answer), right_verdict(task, answer) if good else careless


def _draw(rng: random.Random, split: Split) -> Task | None:
    """One random task, or None where the draw is no task of this split."""
    digits, place = rng.sample(DIGITS, len(ORDINALS)), rng.choice(PLACES)
    prompt = f"digits {' '.join(digits)}"
    held_out = int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:8], "big") % HELD_OUT == 0
    if held_out != (split == "test"):
        return None
    right = digits[place]
    return Task(f"second-guess {prompt} right {right}", prompt, {"digits": digits, "right": right})


def _text(answer: Any) -> str:
    if not isinstance(answer, str):
        raise MarlError(f"second-guess scores a digit as text, got {type(answer).__name__}")
    return answer.strip()


def candidates(task: Task) -> list[str]:
    """The two digits one of which is right."""
    return [str(task.data["digits"][place]) for place in PLACES]


def right_verdict(task: Task, answer: str) -> str:
    """What a verifier should say of an answer."""
    return APPROVE if answer == task.data["right"] else REJECT


def place_of(task: Task, answer: str) -> str:
    """Which of the four digits an answer is, in words; "none" where it is none of them."""
    digits = task.data["digits"]
    return ORDINALS[digits.index(answer)] if answer in digits else NOTHING


def solver_sees(task: Task, rejected: Sequence[str]) -> str:
    """The four digits, and which answers were rejected so far."""
    return " ".join([task.prompt, *(["not", *(place_of(task, answer) for answer in rejected)] if rejected else [])])


def verifier_sees(task: Task, answer: str) -> str:
    """Which digit is right, and which one is the answer."""
    return f"right {place_of(task, task.data['right'])} answer {place_of(task, answer)}"


class SecondGuess(Workflow):
    """The solver answers, the verifier approves or sends back; in the last round there is nobody to send it back to.

    Options:
        rounds: answers that the solver has at most (1: it works alone).
        unparseable: what counts where the verifier says neither word. Its action is marked invalid either way.
    """

    rounds: int = 2
    unparseable: Literal["approve", "reject"] = "approve"

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise MarlError(f"rounds must be 1 or more, got {self.rounds}")

    async def run(self, task: Task, team: LiveTeam) -> str:
        """The solver's last answer."""
        rejected: list[str] = []
        while True:
            action = await team[SOLVER].act(solver_sees(task, rejected))
            answer = action.text.strip()
            if answer not in DIGITS:
                team.invalid(action, "no digit")
                answer = NOTHING
            team.propose(answer)
            if len(rejected) == self.rounds - 1:
                return answer
            verdict = await team[VERIFIER].act(verifier_sees(task, answer))
            said = verdict.text.strip()
            if said not in (APPROVE, REJECT):
                team.invalid(verdict, "no verdict")
                said = self.unparseable
            if said == APPROVE:
                return answer
            rejected.append(answer)


def second_guess_verdict(task: Task, turn: Turn, episode: Episode) -> float:
    """r = 1 when the verdict on the answer that the verifier saw is right, else -1, also when it is no verdict."""
    _, right, _, answer = turn.observation[-1]["content"].split()
    return 1.0 if turn.action.text.strip() == (APPROVE if answer == right else REJECT) else -1.0
