"""What each agent did, counted from episodes as they are stored: one line of JSON an episode (`journals.write`)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

CUT_OFF = "length"
"""The `stop_reason` of an action that came to its limit instead of an end."""


@dataclass
class AgentTally:
    """Sums over the turns of one agent.

    Attributes:
        tokens: of its actions.
        invalid: turns that the workflow could not use.
        cut_off: turns that ended at the length limit.
        rewards: component -> its mean over the agent's turns, of every episode in which it acted.
    """

    turns: int = 0
    tokens: int = 0
    invalid: int = 0
    cut_off: int = 0
    rewards: dict[str, list[float]] = field(default_factory=dict)

    def metrics(self, episodes: int) -> dict[str, Any]:
        """Means: tokens a turn, shares of turns, turns an episode (of all `episodes`), and rewards as in a validation.

        Without a turn there is no length and no share: they are None.
        """
        a_turn = {"response_length": self.tokens, "invalid": self.invalid, "cut_off": self.cut_off}
        return {
            "rewards": {name: sum(values) / len(values) for name, values in sorted(self.rewards.items())},
            **{name: total / self.turns if self.turns else None for name, total in a_turn.items()},
            "turns": self.turns / episodes if episodes else None,
            "tokens": self.tokens,
        }


class Tally:
    """Counts of the episodes and failed attempts that it was given.

    Args:
        agents: of the team; one that never acts is counted too.

    Attributes:
        episodes: how many; failures: how many attempts failed, by reason.
    """

    def __init__(self, agents: Iterable[str]) -> None:
        self.agents = {name: AgentTally() for name in agents}
        self.episodes = 0
        self.failures: Counter[str] = Counter()

    def add(self, lines: Iterable[str]) -> None:
        """Count what some lines hold."""
        for line in lines:
            data = json.loads(line)
            if "failure" in data:
                self.failures[data["failure"]] += 1
            else:
                self._episode(data)

    def _episode(self, data: Mapping[str, Any]) -> None:
        self.episodes += 1
        acts = [record for record in data["journal"]["records"] if record["effect"] == "act"]
        ends = {(act["agent"], act["slot"]): act["action"]["stop_reason"] for act in acts}
        means: dict[str, dict[str, list[float]]] = {}
        for turn in data["turns"]:
            tally = self.agents[turn["agent"]]
            tally.turns += 1
            tally.tokens += turn["length"]
            tally.invalid += turn["invalid"] is not None
            tally.cut_off += ends[turn["called"] or turn["agent"], turn["slot"]] == CUT_OFF
            own = {} if turn["team_reward"] is None else {"team": turn["team_reward"]}
            for component, value in {**own, **turn["rewards"]}.items():
                means.setdefault(turn["agent"], {}).setdefault(component, []).append(value)
        for agent, components in means.items():
            for component, values in components.items():
                self.agents[agent].rewards.setdefault(component, []).append(sum(values) / len(values))

    @property
    def tokens(self) -> int:
        """Sampled in all episodes; those of failed attempts are not known."""
        return sum(tally.tokens for tally in self.agents.values())

    def metrics(self, agent: str) -> dict[str, Any]:
        """The numbers of one agent."""
        return self.agents[agent].metrics(self.episodes)
