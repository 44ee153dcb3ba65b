"""What each agent did, counted from episodes as they are stored: one line of JSON per episode (`journals.write`)."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

CUT_OFF = "length"
"""The `stop_reason` of an action that ended at its length limit."""


class Tally:
    """Counts over stored episodes and failed attempts.

    Args:
        agents: of the team; one that never acts is counted too.

    Attributes:
        episodes: how many; failures: how many attempts failed, by reason.
    """

    def __init__(self, agents: Iterable[str]) -> None:
        self.episodes = 0
        self.failures: Counter[str] = Counter()
        self._counts: dict[str, Counter[str]] = {name: Counter() for name in agents}
        # (agent, component) -> its mean over the agent's turns, of every episode in which it acted
        self._rewards: defaultdict[tuple[str, str], list[float]] = defaultdict(list)

    def add(self, lines: Iterable[str]) -> None:
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
        rewards: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        for turn in data["turns"]:
            counts = self._counts[turn["agent"]]
            counts["turns"] += 1
            counts["tokens"] += turn["length"]
            counts["invalid"] += turn["invalid"] is not None
            counts["cut_off"] += ends[turn["called"] or turn["agent"], turn["slot"]] == CUT_OFF
            team = {} if turn["team_reward"] is None else {"team": turn["team_reward"]}
            for component, value in {**team, **turn["rewards"]}.items():
                rewards[turn["agent"], component].append(value)
        for key, values in rewards.items():
            self._rewards[key].append(sum(values) / len(values))

    @property
    def tokens(self) -> int:
        """Sampled in all episodes; those of failed attempts are not known."""
        return sum(counts["tokens"] for counts in self._counts.values())

    def metrics(self, agent: str) -> dict[str, Any]:
        """Means of an agent: tokens per turn, shares of turns, turns per episode, and rewards as in a validation.

        Without a turn the length and the shares are None.
        """
        counts, rewards = self._counts[agent], sorted(self._rewards.items())
        per_turn = {"response_length": "tokens", "invalid": "invalid", "cut_off": "cut_off"}
        turns = counts["turns"]
        return {
            "rewards": {component: sum(means) / len(means) for (name, component), means in rewards if name == agent},
            **{name: counts[count] / turns if turns else None for name, count in per_turn.items()},
            "turns": turns / self.episodes if self.episodes else None,
            "tokens": counts["tokens"],
        }
