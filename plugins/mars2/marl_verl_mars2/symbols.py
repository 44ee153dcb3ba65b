"""Task set `symbol-tests`: three digits must pass three tests, each of a kind that one of two agents masters.

    tests after 3 across 7 opposite 0       the first digit must be 4, the second 2, the third 5

A kind is a rule from digits to digits: after d = d + 1, before d = d - 1, across d = 9 - d, opposite d = d + 5, all
modulo 10. Every task has kinds of both SHIFTS and FLIPS. All tests are stated; the last test gives no feedback and is
not part of the public score, like a private test of programs.

By its demonstrations, agent `shifter` is often right on SHIFTS and seldom on FLIPS, `flipper` vice versa, and both tend
to keep digits that pass: an attempt that the other one refines passes all tests more often than one of an agent alone.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from marl_verl_code.refine_code import Feedback, GenerateAndRefine

from marl_verl import Task, Team
from marl_verl.tasks import DrawnTasks

SHIFTER, FLIPPER = "shifter", "flipper"
DIGITS = tuple("0123456789")
SHIFTS: Mapping[str, Callable[[int], int]] = {"after": lambda d: (d + 1) % 10, "before": lambda d: (d - 1) % 10}
FLIPS: Mapping[str, Callable[[int], int]] = {"across": lambda d: 9 - d, "opposite": lambda d: (d + 5) % 10}
KINDS = {**SHIFTS, **FLIPS}
KNOWN: Mapping[str, Mapping[str, Callable[[int], int]]] = {SHIFTER: SHIFTS, FLIPPER: FLIPS}
PASS, FAIL, UNSEEN = "pass", "fail", "unseen"
NOTHING = "none"  # shown in place of a word of an attempt that is not a digit
LENGTH = 3  # number of tests, and of digits in an answer; the last test is hidden
SPILL = 0.1  # how much of the other agent's skill an agent can learn


class SymbolTests(DrawnTasks):
    """Tasks with random tests."""

    quick = True
    name = "symbol-tests"
    agents = tuple(KNOWN)

    def score(self, task: Task, answer: Any) -> float:
        return float(all(passed(task, answer)))

    def public_score(self, task: Task, answer: Any) -> float:
        return sum(passed(task, answer)[:-1]) / (LENGTH - 1)

    def vocabulary(self) -> list[str]:
        return [*DIGITS, *KINDS, "tests", "attempt", "results", PASS, FAIL, UNSEEN, NOTHING]

    def _demonstration(self, agent: str, task: Task, rng: random.Random, good: float) -> tuple[str, str]:
        """Every second one refines an attempt.

        For each digit of the answer: for a kind that the agent masters, the right digit with probability `good`. For
        another kind the right digit with probability `good * SPILL`; else, with probability `good`, the attempt's digit
        if there is one that did not fail. Otherwise the test's own digit, which passes no test.
        """
        seen, old, outcomes = task.prompt, [NOTHING] * LENGTH, [FAIL] * LENGTH
        if rng.random() < 0.5:
            before = " ".join(_attempt(rng, rng.choice(list(KNOWN)), task, old, outcomes, good))
            seen, old, outcomes = again_sees(task, before), shown(before), results(task, before)
        return seen, " ".join(_attempt(rng, agent, task, old, outcomes, good))

    def _random_task(self, rng: random.Random) -> tuple[str, Task]:
        kinds = rng.choices(list(KINDS), k=LENGTH)
        while not any(kind in SHIFTS for kind in kinds) or not any(kind in FLIPS for kind in kinds):
            kinds = rng.choices(list(KINDS), k=LENGTH)
        tests = [[kind, rng.choice(DIGITS)] for kind in kinds]
        prompt = "tests " + " ".join(f"{kind} {digit}" for kind, digit in tests)
        return prompt, Task(f"symbol-{prompt}", prompt, {"tests": tests, "hidden": 1})


def _attempt(
    rng: random.Random, agent: str, task: Task, old: Sequence[str], outcomes: Sequence[str], good: float
) -> list[str]:
    answer = []
    for (kind, digit), kept, outcome in zip(task.data["tests"], old, outcomes, strict=True):
        known = kind in KNOWN[agent]
        if rng.random() < (good if known else good * SPILL):
            answer.append(wanted(kind, digit))
        elif not known and kept != NOTHING and outcome != FAIL and rng.random() < good:
            answer.append(kept)
        else:
            answer.append(digit)
    return answer


def wanted(kind: str, digit: str) -> str:
    return str(KINDS[kind](int(digit)))


def passed(task: Task, answer: str) -> list[bool]:
    """Whether each test passes on an answer. An answer with a wrong number of words passes no test."""
    words = answer.split()
    if len(words) != LENGTH:
        return [False] * LENGTH
    return [word == wanted(*test) for word, test in zip(words, task.data["tests"], strict=True)]


def results(task: Task, answer: str) -> list[str]:
    """The result of each test on an answer, as agents see it: the last one is "unseen"."""
    return [*(PASS if right else FAIL for right in passed(task, answer)[:-1]), UNSEEN]


def shown(answer: str) -> list[str]:
    words = [word if word in DIGITS else NOTHING for word in answer.split()[:LENGTH]]
    return words + [NOTHING] * (LENGTH - len(words))


def again_sees(task: Task, attempt: str) -> str:
    """The observation of a refinement: the tests, the attempt, and the result of each test."""
    return f"{task.prompt} attempt {' '.join(shown(attempt))} results {' '.join(results(task, attempt))}"


class RefineSymbols(GenerateAndRefine):
    """Workflow `refine-symbols`: generate and refine digits. `tree-search` makes the chain a tree."""

    def again(self, task: Task, answer: str, feedback: Feedback) -> str:
        return again_sees(task, answer)

    async def feedback(self, task: Task, answer: str, team: Team) -> Feedback:
        outcomes = results(task, answer)
        proper = len(answer.split()) == LENGTH and all(word in DIGITS for word in answer.split())
        return Feedback(FAIL not in outcomes, " ".join(outcomes), None if proper else "not one digit a test")
