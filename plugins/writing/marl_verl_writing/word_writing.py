"""Word writing: the family's task and workflow for tiny models, which write a few words on a topic of three words."""

from __future__ import annotations

import random
from collections.abc import Mapping

from marl_verl import MarlError, Task
from marl_verl.errors import unknown
from marl_verl.tasks import Split, distinct, held_out
from marl_verl_writing.levels import Band, Bands, levels, structure
from marl_verl_writing.two_writers import ONE, TWO, JointWriting, TwoWriters, parts_of

NOUNS = ("apples", "birds", "clouds", "dogs", "engines", "farms", "gardens", "horses", "islands", "jewels")
MORE = ("bright", "cold", "deep", "early", "fast", "gentle")
LINKS = ("however", "therefore", "indeed")
TINY = Bands((2, 12), Band(1.1, 1.6, 3.2, 5.0), Band(1.3, 2.0), "two", 0.25)
HELD_OUT = 10  # one topic in ten


class WordWriting(JointWriting):
    """Topics of three words, scored as texts, with the bands of a short text.

    In careless demonstrations both writers repeat the first word of the topic.
    """

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        """`count` different tasks. A topic is in one split only. MarlError if the split has fewer."""
        rng = random.Random(f"word-writing {split} {seed}")
        return distinct(lambda: _draw(rng, split), count, split, "word-writing")

    def score(self, task: Task, answer: object) -> float:
        """The sum of the levels, 0 to 2.98. MarlError for another form of answer."""
        return sum(levels(*parts_of(answer), TINY).values())

    def public_score(self, task: Task, answer: object) -> float:
        """1 if the word counts of both parts are in range, else 0. MarlError for another form of answer."""
        return float(structure(*parts_of(answer), TINY))

    def vocabulary(self) -> list[str]:
        """All words of observations and answers."""
        return [*NOUNS, *MORE, *LINKS, ONE, TWO]

    def demonstrations(self, agent: str, count: int, seed: int, good: float) -> list[tuple[str, str]]:
        """(observation, answer) pairs of training tasks: a share `good` is correct, the others are careless."""
        if agent not in (ONE, TWO):
            raise unknown("agent of word-writing", agent, (ONE, TWO))
        rng = random.Random(f"word-writing demonstrations {agent} {seed}")
        pairs = []
        for _ in range(count):
            (task,) = distinct(lambda: _draw(rng, "train"), 1, "train", "word-writing")
            topic, extra = task.prompt.split(), rng.sample(MORE, 1)
            long = [rng.choice(LINKS), *topic, *extra]
            said = (topic[:2] if agent == ONE else long) if rng.random() < good else topic[:1] * rng.randint(1, 3)
            pairs.append((f"{agent} {task.prompt}", " ".join(said)))
        return pairs


class WordWriters(TwoWriters):
    """`two-writers` with observations in the words of tiny models: which part to write, and the topic."""

    def sees(self, task: Task, agent: str, parts: Mapping[str, str], one: str = "") -> str:
        if agent not in (ONE, TWO):
            raise MarlError(f"word-writing needs the agents '{ONE}' and '{TWO}', got '{agent}'")
        return f"{agent} {task.prompt}"


def _draw(rng: random.Random, split: Split) -> Task | None:
    topic = " ".join(sorted(rng.sample(NOUNS, 3), key=lambda _: rng.random()))
    return Task(f"word-writing {topic}", topic) if held_out(topic, HELD_OUT) == (split == "test") else None
