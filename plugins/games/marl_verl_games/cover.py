"""Cover: agents with one and the same prompt choose different items, without seeing each other's choice.

The task of studies of role collapse and of the number of agents: agents that act alike cover one item only, so a team
must come to differ although nothing in the prompt tells its agents apart.
"""

import random
from collections.abc import Mapping
from itertools import combinations, starmap
from statistics import fmean
from typing import Annotated, Any

from annotated_types import Interval

from marl_verl import Metric, Task, Team, Workflow
from marl_verl.algo.sampling import Sample
from marl_verl.errors import check_known
from marl_verl.tasks import DrawnTasks

ITEMS = tuple("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
NUMBERS = tuple("12345678")
AGENTS = tuple(f"agent-{number}" for number in NUMBERS)
NOTHING = "none"
Said = tuple[tuple[int, str | None], str]  # an episode, or the node of a tree, and a text


class Cover(DrawnTasks):
    """Lists of items. An answer is one number per agent; its score is the share of the items that are chosen.

    Options:
        items: number of items in a list, and the number of agents that can cover it (2 to 8).
    """

    quick = True
    name = "cover"
    one_in = 5
    items: Annotated[int, Interval(ge=2, le=8)] = 2

    def score(self, task: Task, answer: Any) -> float:
        return len(set(answer.split()) & set(numbers(task))) / len(numbers(task))

    def vocabulary(self) -> list[str]:
        return [*ITEMS, *NUMBERS, "choose", NOTHING]

    def demonstrations(self, agent: str, count: int, seed: int, good: float) -> list[tuple[str, str]]:
        """(observation, answer) pairs of training tasks: a share `good` is a number of the list, others are any."""
        check_known("agent", agent, AGENTS)
        rng = random.Random(f"cover demonstrations {seed}")
        tasks = (self._next_task(rng, "train") for _ in range(count))  # each drawn just before its answer
        return [(task.prompt, rng.choice(numbers(task) if rng.random() < good else NUMBERS)) for task in tasks]

    def _random_task(self, rng: random.Random) -> tuple[str, Task]:
        items = rng.sample(ITEMS, self.items)
        shown = " ".join(items)
        return f"cover {' '.join(sorted(items))}", Task(f"cover {shown}", f"choose {shown}", {"items": items})


def numbers(task: Task) -> tuple[str, ...]:
    """The numbers of the items of a list, from 1."""
    return NUMBERS[: len(task.data["items"])]


class CoverTogether(Workflow):
    """All agents see the same list and choose the number of one item, at the same time."""

    async def run(self, task: Task, team: Team) -> str:
        actions = await team.act(dict.fromkeys(team.agents, task.prompt))
        chosen = {agent: action.text.strip() for agent, action in actions.items()}
        for agent, number in chosen.items():
            if number not in numbers(task):
                team.invalid(actions[agent], "no number of the list")
        return " ".join(number if number in NUMBERS else NOTHING for number in chosen.values())


class RoleDifference(Metric):
    """`team/difference`: whether agents with one prompt act differently, from 0 (as one agent would) to 1.

        P(texts of two agents differ) - P(texts of one agent differ in two episodes),  for equal observations

    averaged over a task's observations that several agents saw. Agents that are the same policy have 0 on average, also
    if that policy is random; agents with fixed different choices have 1. The second probability is the mean over the
    agents. Tasks without such observations, or with a single episode, are not counted.
    """

    def of_sample(self, sample: Sample) -> Mapping[str, float]:
        texts: dict[str, dict[str, list[Said]]] = {}
        for turn in sample.turns:
            seen = repr([dict(message) for message in turn.observation])
            texts.setdefault(seen, {}).setdefault(turn.agent, []).append(((turn.session, turn.node), turn.action.text))
        differences = [
            fmean(starmap(_differing, combinations(by_agent.values(), 2)))
            - fmean(_differing(own, own) for own in by_agent.values())
            for by_agent in texts.values()
            if len(by_agent) > 1 and all(len({episode for episode, _ in own}) > 1 for own in by_agent.values())
        ]
        return {"team/difference": sum(differences) / len(differences)} if differences else {}


def _differing(one: list[Said], two: list[Said]) -> float:
    """The share of pairs from different episodes that differ."""
    return fmean(a != b for at, a in one for to, b in two if at != to)
