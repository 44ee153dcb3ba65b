"""`marl-verl eval RUN --partner NAME`: what the change of an agent's policy between two steps is worth to the others.

The team of the last step plays the held-out tasks beside the partner's policy of each step, with the same seeds. Per
agent and reward component, difference = mean over tasks of (reward beside the partner of the last step - reward beside
that of the earlier step), where a task's reward is the mean of its episodes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from marl_verl.errors import MarlError, unknown
from marl_verl.evaluation.request import Assignment, Pairing
from marl_verl_leagues.elo import interval

Rewards = Mapping[str, Mapping[str, float]]
"""Agent -> component -> its mean over the agent's turns, of one episode."""


def pairings_of(partner: str, assignments: Mapping[int, Mapping[str, Assignment]]) -> tuple[Pairing, ...]:
    """The team of the last step with the partner's policy of each step; `assignments`: step -> those of its agents.
    MarlError: an unknown agent, or one without others or without a trained policy."""
    last = assignments[max(assignments)]
    if partner not in last:
        raise unknown("agent", partner, last)
    policies = {step: own[partner].policy for step, own in assignments.items()}
    if len(set(policies.values())) == 1 or len(last) == 1:
        why = "its policy is not trained" if len(last) > 1 else "the team has no other agent"
        raise MarlError(f"--partner {partner} has no effect on others: {why}")
    team = {agent: assignment.policy for agent, assignment in last.items()}
    label = f"team@{max(assignments)}"
    return tuple(Pairing(label, f"{partner}@{step}", team | {partner: used}) for step, used in policies.items())


def differences(pairings: Sequence[Pairing], rewards: Sequence[Sequence[Sequence[Rewards]]]) -> dict[str, Any]:
    """The numbers of each pairing: mean rewards, and their differences to the last pairing.

    Args:
        rewards: of each pairing, task and episode; failed episodes are missing, and so is a task without others.
    """
    partner = pairings[-1].column.rpartition("@")[0]
    values = [_by_task(tasks, partner) for tasks in rewards]
    results = []
    for pairing, before in zip(pairings, values, strict=True):
        result: dict[str, Any] = {"row": pairing.row, "column": pairing.column, "rewards": {}, "difference": {}}
        for name, after in sorted(values[-1].items()):
            tasks = sorted(after.keys() & before.get(name, {}).keys())
            gains = [after[task] - before[name][task] for task in tasks]
            if gains:
                result["rewards"][name] = float(np.mean([before[name][task] for task in tasks]))
                result["difference"][name] = {"mean": float(np.mean(gains)), "interval": interval(gains)}
        results.append(result)
    return {"pairings": results}


def _by_task(tasks: Sequence[Sequence[Rewards]], partner: str) -> dict[str, dict[int, float]]:
    """ "agent, component" of the others -> task -> mean of its episodes."""
    values: dict[str, dict[int, list[float]]] = {}
    for task, episodes in enumerate(tasks):
        for agent, components in ((agent, own) for episode in episodes for agent, own in episode.items()):
            for component, value in components.items() if agent != partner else ():
                values.setdefault(f"{agent}, {component}", {}).setdefault(task, []).append(value)
    return {name: {task: float(np.mean(own)) for task, own in by_task.items()} for name, by_task in values.items()}
