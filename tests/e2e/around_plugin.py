"""A third-party distribution, which the tests install outside the repository: teams, rewards, an estimator."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from marl_verl_tiny.inventory import asker_sees, holder_sees

from marl_verl import Task, TaskSet, Workflow, hookimpl, plugins
from marl_verl.algo.advantage import AdvantageResult, Estimator, group_ids
from marl_verl.episode import CallError

DIGITS = "0123456789"


class Twice(Workflow):
    """The asker guesses while the holder writes, and answers once it has read."""

    async def run(self, task: Task, team: Any) -> str:
        both = {"holder": holder_sees(task), "asker": asker_sees(task, "none")}
        said = await team.act(both)
        if task.data["digits"][0] < "3":  # longer episodes: the batch does not divide, and rows are padded
            said = await team.act(both)
        words = said["holder"].text.split()
        whole = len(words) == 4 and all(word in DIGITS for word in words)
        last = await team["asker"].act(asker_sees(task, " ".join(words) if whole else "none"))
        await team.call(len, last.text)
        return last.text


def one_word(task: Task, turn: Any, episode: Any) -> float:
    return float(len(turn.action.text.split()) == 1)


@dataclass(frozen=True)
class AgainstMedian(Estimator):
    """A = r - median of the rows of the task and agent."""

    def compute(self, table: Any, reward: Any) -> AdvantageResult:
        group = group_ids(table, ("uid", "agent"))
        median = np.array([np.median(reward[group == g]) for g in range(group.max() + 1)])[group]
        return AdvantageResult.of(
            ret=reward,
            reward=reward,
            baseline=median,
            scale=np.ones(len(table)),
            group=group,
            sample=np.arange(len(table)),
            group_by=("uid", "agent"),
        )


class Relay(TaskSet):
    """One digit, to be said by everybody."""

    def generate(self, split: str, count: int, seed: int) -> list[Task]:
        rng = random.Random(f"{split}{seed}")
        first = 0 if split == "train" else 10**6
        return [Task(f"relay-{first + i}", "say the digit", {"digit": rng.choice(DIGITS)}) for i in range(count)]

    async def score(self, task: Task, answer: str) -> float:
        return sum(said == task.data["digit"] for said in answer.split()) / 3

    def public_score(self, task: Task, answer: str) -> float:
        return sum(said in DIGITS for said in answer.split()) / 3

    def vocabulary(self) -> list[str]:
        return ["digit", "heard", "none", *DIGITS]

    def demonstrations(self, agent: str, count: int, seed: int, good: float) -> list[tuple[str, str]]:
        rng = random.Random(f"{agent}{seed}")
        pairs = []
        for _ in range(count):
            digit, other = rng.choice(DIGITS), rng.choice([*DIGITS, "none"])
            seen = f"digit {digit}" if rng.random() < 0.5 else f"digit {digit} heard {other}"
            pairs.append((seen, digit if rng.random() < good else rng.choice(DIGITS)))
        return pairs


def one_digit(said: str) -> str:
    if said not in DIGITS:
        raise ValueError(said)
    return said


def word(said: str) -> str:
    return said.strip() if said.strip() in DIGITS else "none"


class Around(Workflow):
    """The planner says it, both workers repeat it at once, the planner says it again."""

    async def run(self, task: Task, team: Any) -> str:
        digit = task.data["digit"]
        first = await team["planner"].act(f"digit {digit}")
        team.propose(f"{word(first.text)} none none")
        seen = f"digit {digit} heard {word(first.text)}"
        said = await team.act({"left": seen, "right": seen})
        for agent in ("left", "right"):
            try:
                await team[agent].call(one_digit, said[agent].text.strip())
            except CallError:
                team.invalid(said[agent], "no digit")
        team.propose(" ".join([word(said["left"].text), word(said["right"].text), "none"]))
        last = await team["planner"].act(f"digit {digit} heard {word(said['left'].text)}")
        return " ".join([word(said["left"].text), word(said["right"].text), word(last.text)])


def said_it(task: Task, turn: Any, episode: Any) -> float:
    return float(turn.action.text == task.data["digit"]) / 2


class AllTeams(TaskSet):
    """The vocabulary and the demonstrations of several task sets; an agent is named `TASK/AGENT`.

    Options:
        sets: registered names of the task sets.
        good: agent -> share of correct demonstrations, instead of the model's.
    """

    sets: Sequence[str] = ()
    good: Mapping[str, float] = field(default_factory=dict)

    def vocabulary(self) -> list[str]:
        return list(dict.fromkeys(each for name in self.sets for each in _task_set(name).vocabulary()))

    def demonstrations(self, agent: str, count: int, seed: int, good: float) -> list[tuple[str, str]]:
        name, _, own = agent.partition("/")
        return _task_set(name).demonstrations(own, count, seed, self.good.get(agent, good))


def _task_set(name: str) -> Any:
    return plugins.load().get("tasks", name)()


@hookimpl
def marl_register(registry: Any) -> None:
    registry.task("relay", Relay)
    registry.task("all-teams", AllTeams)
    registry.workflow("around", Around)
    registry.workflow("twice", Twice)
    registry.reward("said-it", said_it)
    registry.reward("one-word", one_word)
    registry.advantage("against-median", AgainstMedian)
