"""Workflow `refine-symbols`: generate and refine, for the task `symbol-tests`. `tree-search` makes the chain a tree."""

from __future__ import annotations

from marl_verl_code.refine import Feedback, GenerateAndRefine

from marl_verl import Task
from marl_verl.episode import Team
from marl_verl_mars2 import symbols


class RefineSymbols(GenerateAndRefine):
    """Digits that must pass tests, as `symbol-tests` makes them."""

    def again(self, task: Task, answer: str, feedback: Feedback) -> str:
        """The tests, the attempt and the result of each test."""
        return symbols.again_sees(task, answer)

    async def feedback(self, task: Task, answer: str, team: Team) -> Feedback:
        """Pass, fail or unseen, a word a test."""
        outcomes = symbols.results(task, answer)
        good = len(answer.split()) == len(outcomes) and all(word in symbols.DIGITS for word in answer.split())
        return Feedback(symbols.FAIL not in outcomes, " ".join(outcomes), None if good else "not one digit a test")
