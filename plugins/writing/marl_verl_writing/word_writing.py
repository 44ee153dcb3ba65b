"""Word writing: the family's task and workflow for tiny models, which write a few words on a topic of three words."""

import random
from collections.abc import Mapping

from marl_verl import Task
from marl_verl.tasks import DrawnTasks, Split, held_out
from marl_verl_writing.levels import Band, Bands
from marl_verl_writing.two_writers import ONE, TWO, JointWriting, TwoWriters

NOUNS = ("apples", "birds", "clouds", "dogs", "engines", "farms", "gardens", "horses", "islands", "jewels")
MORE = ("bright", "cold", "deep", "early", "fast", "gentle")
LINKS = ("however", "therefore", "indeed")
TINY = Bands((2, 12), Band(1.1, 1.6, 3.2, 5.0), Band(1.3, 2.0), "two", 0.25)
HELD_OUT = 10  # one topic in ten


class WordWriting(DrawnTasks, JointWriting):
    """Topics of three words, scored as texts, with the bands of a short text.

    In careless demonstrations both writers repeat the first word of the topic.
    """

    name = "word-writing"
    agents = (ONE, TWO)
    limits = TINY

    def vocabulary(self) -> list[str]:
        return [*NOUNS, *MORE, *LINKS, ONE, TWO]

    def _demonstration(self, agent: str, task: Task, rng: random.Random, good: float) -> tuple[str, str]:
        topic, extra = task.prompt.split(), rng.sample(MORE, 1)
        long = [rng.choice(LINKS), *topic, *extra]
        said = (topic[:2] if agent == ONE else long) if rng.random() < good else topic[:1] * rng.randint(1, 3)
        return f"{agent} {task.prompt}", " ".join(said)

    def _draw(self, rng: random.Random, split: Split) -> Task | None:
        topic = " ".join(sorted(rng.sample(NOUNS, 3), key=lambda _: rng.random()))
        return Task(f"word-writing {topic}", topic) if held_out(topic, HELD_OUT) == (split == "test") else None


class WordWriters(TwoWriters):
    """`two-writers` with observations in the words of tiny models: which part to write, and the topic."""

    def sees(self, task: Task, agent: str, parts: Mapping[str, str], one: str = "") -> str:
        return f"{agent} {task.prompt}"
