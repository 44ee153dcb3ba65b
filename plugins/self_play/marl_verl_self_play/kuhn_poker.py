"""Kuhn Poker as a task set and a workflow of two agents, each of which sees its own card only."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

from marl_verl import Task, TaskSet, Workflow
from marl_verl.episode import Team
from marl_verl.errors import MarlError
from marl_verl.tasks import Split
from marl_verl_self_play.kuhn import DEALS, ENDS, legal_moves, payoff

PLAYERS = ("first", "second")
RULES = (
    "Kuhn Poker: the cards are J < Q < K, each player has one, and both have put in 1 chip. A bet or a call is 1 more "
    "chip. The higher card wins, unless a player folds."
)


class KuhnPoker(TaskSet):
    """Deals of Kuhn Poker: every six tasks are the six deals, in random order.

    The game has no other deals, so held-out tasks measure how the players play, not whether they generalise. Each
    side, `first` and `second`, scores its payoff in chips; the two add up to 0.
    """

    sides = PLAYERS

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        """`count` numbered deals. Ids have the split, so that no test task is a training task."""
        rng = random.Random(f"kuhn-poker {split} {seed}")
        deals: list[tuple[str, str]] = []
        while len(deals) < count:
            deals += rng.sample(DEALS, len(DEALS))
        return [_task(f"kuhn-poker {split} {seed}-{number}", deal) for number, deal in enumerate(deals[:count])]

    def score(self, task: Task, answer: Any) -> dict[str, float]:
        """Side -> its payoff. MarlError unless the answer is one of workflow `kuhn-poker`."""
        return dict(_played(answer)["rewards"])

    def success(self, task: Task, answer: Any) -> bool:
        """Whether all moves of both players were legal. MarlError as in `score`."""
        return bool(_played(answer)["illegal"] == 0)


class KuhnPokerGame(Workflow):
    """Agents `first` and `second`, of the sides of these names, play one deal. The answer has their payoffs.

    A move is the only legal one that the text names as a word, in any case. Any other text is marked as invalid and
    counts as a check or fold, so that every game ends and stays zero-sum.
    """

    async def run(self, task: Task, team: Team) -> dict[str, Any]:
        one, two = task.data["cards"]
        history, told, illegal = "", list[str](), 0
        while history not in ENDS:
            player = len(history) % 2
            legal = legal_moves(history)
            action = await team[PLAYERS[player]].act(_observation((one, two)[player], player, told, legal))
            named = set(re.findall(r"[a-z]+", action.text.lower())) & set(legal)
            if len(named) != 1:
                team.invalid(action, f"no single legal move: {legal[0]} or {legal[1]}")
                illegal += 1
            move = legal[1] if named == {legal[1]} else legal[0]
            told.append(f"{PLAYERS[player]} {move}")
            history += "b" if move == legal[1] else "p"
        won = payoff((one, two), history)
        rewards = dict(zip(PLAYERS, (float(won), float(-won)), strict=True))
        return {"text": f"{one} {two}: {', '.join(told)}", "rewards": rewards, "illegal": illegal}


def _task(name: str, deal: tuple[str, str]) -> Task:
    return Task(name, RULES, {"cards": list(deal), "deal": name})


def _observation(card: str, player: int, told: list[str], legal: tuple[str, str]) -> str:
    moves = ", ".join(told) or "none"
    where = f"You are the {PLAYERS[player]} player. Your card: {card}. Moves so far: {moves}."
    return f"{RULES}\n{where}\nAnswer with one legal move: {legal[0]} or {legal[1]}."


def _played(answer: Any) -> Mapping[str, Any]:
    if not isinstance(answer, Mapping) or not {"rewards", "illegal"} <= set(answer):
        raise MarlError(f"kuhn-poker scores answers of workflow 'kuhn-poker', got {answer!r:.60}")
    return answer
