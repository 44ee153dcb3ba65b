"""Made-up rows of a team, on which an algorithm is tried before work starts."""

from __future__ import annotations

from typing import Any

from marl_verl.advantage import Algorithm
from marl_verl.credit.replay import ReplayCredit
from marl_verl.sampling import Sampler
from marl_verl.team import Team


def made_up(number: int, attempts: int, sampler: Sampler, algorithm: Algorithm, team: Team) -> list[dict[str, Any]]:
    """Rows of one task, one turn an agent and attempt, with every reward component that a run of this team has.

    Components are unlike each other, and unlike those of tasks with another number: an algorithm for joint rewards
    meets role rewards here and not in the first step.

    Args:
        number: of the task.
        attempts: sessions, or branches of a tree.
    """
    credit = algorithm.credit
    credited = credit.players(list(team.agents)) if isinstance(credit, ReplayCredit) else ()
    rows = []
    for attempt in range(attempts):
        outcome = float((7 * attempt + 3 * number) % 5 + 10 * number)
        for index, agent in enumerate(team.agents.values()):
            rewards = {"team": outcome}
            if agent.reward:
                rewards["role"] = float((attempt + index) % 2)
            if isinstance(credit, ReplayCredit) and agent.name in credited:
                rewards[credit.component] = float(attempt) / (index + 1)
            if "tool" in algorithm.rewards.asks():
                rewards["tool"] = 1.0
            rows.append(
                {
                    "uid": f"made-up-{number}",
                    "session": 0 if sampler.branches else attempt,
                    "index": attempt * len(team.agents) + index,
                    "turn": 0,
                    "agent": agent.name,
                    "policy": agent.policy,
                    "slot": "0",
                    # where a path adds up, all agents share a node
                    "node": None if not sampler.branches else f"{attempt}" if sampler.adds_up else f"{attempt}-{index}",
                    "rewards": rewards,
                    "invalid": (attempt + index) % 2 == 0,
                    "length": 1 + attempt + number,
                    "obs": agent.name,
                    **({"value": 0.0} if algorithm.advantage.wants_critic() else {}),
                }
            )
    return rows
