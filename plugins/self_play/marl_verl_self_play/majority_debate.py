"""Debate with a judge: two debaters see a list of letters and claim different majorities; the judge, who sees only the
letters that they quote, decides."""

import random
import re
from typing import Any, Literal

from marl_verl import Task, Team, Workflow
from marl_verl.tasks import DrawnTasks, Split

DEBATERS, JUDGE = ("pro", "con"), "judge"
LETTERS = ("A", "B")
HIDDEN, CLAIM = "?", "claim"
QUESTION = "Which letter occurs more often in a list of letters A and B?"


class MajorityDebate(DrawnTasks):
    """Lists of letters A and B, an odd number of them. Which letter is the majority?

    `pro` claims the task's letter and `con` the other one. Sides `pro` and `con` score 1 for the one whose letter the
    judge names and -1 for the other, or 0 without a verdict. The pairs of a list and a claim are few, so tasks repeat
    within a split; no list is in both.

    A share `good` of the debaters' demonstrated quotes are positions of the claimed letter, at most as many as prove a
    majority; the others are the first positions of the list. The judge sees a random part of the list and names the
    majority of the whole list; a share `good` of its verdicts is right.

    Options:
        length: letters in a list (3 to 9, odd).
    """

    quick = True
    sides = DEBATERS
    name = "majority-debate"
    agents = (*DEBATERS, JUDGE)
    one_in = 5

    length: Literal[3, 5, 7, 9] = 7

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        rng, tasks = random.Random(f"{self.name} {split} {seed}"), []
        for at in range(count):
            data = {**self._next_task(rng, split).data, "claim": rng.choice(LETTERS)}
            tasks.append(Task(f"{self.name} {split} {seed}-{at}", QUESTION, data))
        return tasks

    def vocabulary(self) -> list[str]:
        return [*LETTERS, HIDDEN, CLAIM, *(str(at + 1) for at in range(self.length))]

    def _demonstration(self, agent: str, task: Task, rng: random.Random, good: float) -> tuple[str, str]:
        letters = task.data["letters"]
        if agent == JUDGE:
            shown = set(rng.sample(range(self.length), rng.randint(1, self.length)))
            right, true = rng.random() < good, majority(letters)
            return masked(letters, shown), true if right else other(true)
        claim, right = rng.choice(LETTERS), rng.random() < good
        claimed = [str(at + 1) for at, letter in enumerate(letters) if letter == claim] if right else []
        quotes = (claimed or [str(at + 1) for at in range(self.length)])[: self.length // 2 + 1]
        return debater_sees(letters, claim), " ".join(quotes)

    def _random_task(self, rng: random.Random) -> tuple[str, Task]:
        letters = rng.choices(LETTERS, k=self.length)
        shown = f"majority {' '.join(letters)}"
        return shown, Task(shown, QUESTION, {"letters": letters})

    def score(self, task: Task, answer: Any) -> dict[str, float]:
        verdict = answer["verdict"]
        won = 0.0 if verdict is None else 1.0 if verdict == task.data["claim"] else -1.0
        return dict(zip(DEBATERS, (won, -won), strict=True))

    def success(self, task: Task, answer: Any) -> bool:
        return bool(answer["verdict"] == majority(task.data["letters"]))


class MajorityDebateGame(Workflow):
    """Agents `pro` and `con`, of the sides of these names, quote positions at the same time; then `judge` decides.

    The judge sees the letters at the quoted positions, whoever quoted them, so debaters choose evidence and cannot
    forge it. A quote is 1 to `quotes` different positions; another text is marked as invalid and shows nothing. A
    verdict that is not exactly one of the letters is marked and makes a draw.

    Source: the debate game on MNIST of Irving et al., arXiv 1805.00899, where players take turns.

    Options:
        quotes: maximum number of positions that a debater quotes.
    """

    quotes: int = 4

    async def run(self, task: Task, team: Team) -> dict[str, Any]:
        letters, claims = task.data["letters"], (task.data["claim"], other(task.data["claim"]))
        quoted: set[int] = set()
        seen = {who: debater_sees(letters, claim) for who, claim in zip(DEBATERS, claims, strict=True)}
        for action in (await team.act(seen)).values():
            named = [int(number) - 1 for number in re.findall(r"\d+", action.text)]
            right = len(named) == len(set(named) & set(range(len(letters))))
            if right and 1 <= len(named) <= self.quotes:
                quoted |= set(named)
            else:
                team.invalid(action, f"not 1 to {self.quotes} different positions of the list")
        action = await team[JUDGE].act(masked(letters, quoted))
        verdict = action.text.strip() if action.text.strip() in LETTERS else None
        if verdict is None:
            team.invalid(action, f"not one of {', '.join(LETTERS)}")
        return {"text": f"{masked(letters, quoted)}: {verdict}", "verdict": verdict}


def debater_sees(letters: list[str], claim: str) -> str:
    return f"{CLAIM} {claim} {' '.join(f'{at + 1} {letter}' for at, letter in enumerate(letters))}"


def masked(letters: list[str], quoted: set[int]) -> str:
    """The judge's observation: the quoted letters in their places, which are from 0."""
    return " ".join(letter if at in quoted else HIDDEN for at, letter in enumerate(letters))


def majority(letters: list[str]) -> str:
    return max(LETTERS, key=letters.count)


def other(letter: str) -> str:
    return LETTERS[1 - LETTERS.index(letter)]
