"""Proposer and solver: one agent writes problems, another solves them, and the share of solved attempts is the
measured difficulty, by which the proposer is rewarded."""

import asyncio
import random
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from annotated_types import Interval

from marl_verl import Action, Episode, MarlError, Task, TaskSet, Team, Turn, Workflow
from marl_verl.errors import check_known
from marl_verl.tasks import Split, held_out, quick

PROPOSER, SOLVER = "proposer", "solver"
ASK = "propose"  # the first word of an observation of the proposer
SIGNS = ("+", "-")
HELD_OUT = 10  # one problem in ten
TRIES = 10_000  # draws without a problem of the split after which there is none
PROBLEM = re.compile(r"\s*\d(\s*[+-]\s*\d)+\s*")
NUMBER = re.compile(r"\s*[+-]?\d+\s*")


def parsed(text: str) -> list[str] | None:
    """Digits and signs of a problem; None if the text is not one."""
    return re.findall(r"[\d+-]", text) if PROBLEM.fullmatch(text) else None


def result(parts: Sequence[str]) -> int:
    return sum(map(int, re.findall(r"[+-]?\d", "".join(parts))))


def number(text: str) -> int | None:
    return int(text) if NUMBER.fullmatch(text) else None


def reserved(parts: Sequence[str]) -> bool:
    """Whether a problem belongs to the test split, so that no agent may propose it."""
    return held_out(" ".join(parts), HELD_OUT)


def drawn(rng: random.Random, terms: int, largest: int, test: bool = False) -> list[str]:
    """Digits (to `largest`) and signs of a random problem of `terms` digits of one split. MarlError if it has none."""
    for _ in range(TRIES):
        parts = [str(rng.randint(0, largest))]
        for _ in range(terms - 1):
            parts += [rng.choice(SIGNS), str(rng.randint(0, largest))]
        if reserved(parts) == test:
            return parts
    raise MarlError(f"proposed-arithmetic: no test problem of {terms} digits up to {largest}: set a larger 'largest'")


class ProposedArithmetic(TaskSet):
    """Problems that the team writes itself: a training task is the digit with which the problem must begin.

    A task of the test split is a problem for the solver alone, of 2 to `terms` digits. No proposal may be one of these:
    one problem in ten belongs to the test split. Sides `proposer` and `solver` score the learnability reward and the
    share of solved attempts; they do not add up to 0.

    Options:
        terms: maximum number of digits in a problem (2 to 9).
        largest: largest digit (1 to 9).
    """

    quick = True
    sides = (PROPOSER, SOLVER)

    terms: Annotated[int, Interval(ge=2, le=9)] = 4
    largest: Annotated[int, Interval(ge=1, le=9)] = 9

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        """`count` numbered tasks; in the test split every number of digits occurs equally often."""
        rng = random.Random(f"proposed-arithmetic {split} {seed}")
        tasks = []
        for at in range(count):
            data: dict[str, Any] = {"terms": self.terms, "largest": self.largest}
            if split == "test":
                data["problem"] = " ".join(drawn(rng, 2 + at % (self.terms - 1), self.largest, test=True))
            else:
                data["first"] = str(rng.randint(0, self.largest))
            tasks.append(Task(f"proposed-arithmetic {split} {seed}-{at}", sees(data), data))
        return tasks

    def vocabulary(self) -> list[str]:
        largest = self.largest * self.terms
        return [ASK, *SIGNS, *(str(number) for number in range(self.largest - largest, largest + 1))]

    def demonstrations(self, agent: str, count: int, seed: int, good: float) -> list[tuple[str, str]]:
        """(observation, text) pairs of training problems of 2 to `terms` digits, for tiny models.

        A share `good` of the proposals begins with the digit of the task, the others with any. Of results of n
        operations, a share `good`^n is right, so longer problems are harder; the others are the first digit.
        """
        check_known("agent", agent, self.sides)
        rng = random.Random(f"proposed-arithmetic demonstrations {agent} {seed}")
        pairs = []
        for _ in range(count):
            parts = drawn(rng, rng.randint(2, self.terms), self.largest)
            if agent == self.sides[0]:  # the proposer
                first = parts[0] if rng.random() < good else str(rng.randint(0, self.largest))
                pairs.append((f"{ASK} {first}", " ".join(parts)))
            else:
                right = rng.random() < good ** len(parts[2::2])
                pairs.append((" ".join(parts), str(result(parts)) if right else parts[0]))
        return pairs

    def score(self, task: Task, answer: Any) -> dict[str, float]:
        """Side -> its reward; 0 for the proposer if the task gives the problem."""
        solved = _solved(answer)
        return {PROPOSER: learnability(solved) if "first" in task.data else 0.0, SOLVER: solved or 0.0}

    def success(self, task: Task, answer: Any) -> bool:
        """Whether every attempt was right, of which a test task has one."""
        return _solved(answer) == 1.0


class ProposerSolver(Workflow):
    """The proposer writes a problem; the solver attempts it several times at once, without seeing other attempts.

    A proposal is valid if it is a problem of 2 to `terms` digits that begins with the task's digit and is not of the
    test split. An invalid one is marked, and nothing is attempted. A task that has a problem is attempted once.

    Options:
        attempts: concurrent attempts at one problem, which measure its difficulty.
    """

    attempts: int = 4

    async def run(self, task: Task, team: Team) -> dict[str, Any]:
        if problem := task.data.get("problem"):
            count, parts = 1, parsed(problem)
        else:
            proposal = await team[PROPOSER].act(sees(task.data))
            count, parts = self.attempts, parsed(proposal.text)
            if not _proper(parts, task.data):
                team.invalid(proposal, "no training problem that the task asks for")
                return {"text": "no problem", "problem": None, "correct": []}
        assert parts is not None
        problem, right = " ".join(parts), result(parts)
        slots = [f"attempt{at}" for at in range(count)]
        actions: list[Action] = await asyncio.gather(*(team[SOLVER].act(problem, slot=slot) for slot in slots))
        for action in actions:
            if number(action.text) is None:
                team.invalid(action, "not a whole number")
        correct = [number(action.text) == right for action in actions]
        return {"text": f"{problem}: {sum(correct)} of {count} solved", "problem": problem, "correct": correct}


def sees(data: Mapping[str, Any]) -> str:
    """The proposer's observation; of a task that gives the problem, the problem."""
    return str(data["problem"]) if "problem" in data else f"{ASK} {data['first']}"


def _proper(parts: list[str] | None, data: Mapping[str, Any]) -> bool:
    if parts is None or reserved(parts) or parts[0] != data["first"]:
        return False
    return len(parts[::2]) <= data["terms"] and max(map(int, parts[::2])) <= data["largest"]


def learnability(solved: float | None) -> float:
    """The learnability reward of the proposer,

        r = 0 if s is 0 or 1, else 1 - s

    where s is the share of solved attempts; 0 for an invalid proposal (None). Source: Absolute Zero, arXiv 2505.03335
    (r_propose, with the mean success of the solver's attempts), where an invalid proposal has a penalty instead.
    """
    return 0.0 if solved is None or solved in (0.0, 1.0) else 1.0 - solved


@quick
def proposer_learnability(task: Task, turn: Turn, episode: Episode) -> float:
    """Role reward: `learnability` of the proposed problem; 0 in an episode that is not finished."""
    return learnability(_solved(episode.answer)) if episode.finished else 0.0


@quick
def proposer_uncertainty(task: Task, turn: Turn, episode: Episode) -> float:
    """Role reward, the largest where half of the attempts are solved: r = 1 - 2 |s - 1/2|, s as of `learnability`; 0
    for an invalid proposal or an episode that is not finished.

    Source: R-Zero, arXiv 2508.05004, where s is the share of attempts that agree with the most frequent answer (here
    the result is computed), and a penalty for problems that resemble others of the batch is subtracted.
    """
    solved = _solved(episode.answer) if episode.finished else None
    return 0.0 if solved is None else 1.0 - 2.0 * abs(solved - 0.5)


@quick
def solver_correct(task: Task, turn: Turn, episode: Episode) -> float:
    """Role reward of one attempt: 1 if its result is right, else 0."""
    parts = parsed(str(turn.observation[-1]["content"]))
    return float(parts is not None and number(turn.action.text) == result(parts))


def _solved(answer: Any) -> float | None:
    """The share of solved attempts; None without a valid problem."""
    correct = answer["correct"]
    return sum(correct) / len(correct) if correct else None
