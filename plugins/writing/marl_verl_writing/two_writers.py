"""Joint writing: two agents write one part of a text each, simultaneously, for one joint reward.

TLDR: one agent summarises a post in one sentence, the other in more detail. arXiv: from an abstract, one agent writes
the first paragraph of an introduction, the other the second. Neither sees the other's text; the wanted lengths,
vocabulary and coherence are defined by the reward only (`levels`). Source: MAGRPO, arXiv 2508.04652.
"""

import random
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from marl_verl_datasets import Fields, PublicSet, PublicTasks, task_id

from marl_verl import Task, Team, Workflow
from marl_verl.options import Positive
from marl_verl.tasks import DrawnTasks
from marl_verl_writing.levels import BANDS, Band, Bands, levels, structure


def tldr(row: Fields) -> Task:
    """A post in `prompt`, without the request for a summary at its end, which the workflow adds."""
    post = row.text("prompt").removesuffix("TL;DR:").rstrip()
    return Task(task_id("tldr", post), post)


def arxiv(row: Fields) -> Task:
    abstract = " ".join(row.text("abstract_text", "abstract").split())
    return Task(task_id("arxiv", abstract), abstract)


SETS: Mapping[str, PublicSet] = {
    "tldr": PublicSet("trl-lib/tldr", tldr),
    "arxiv": PublicSet("OpenMLRL/arXiv_abstract", arxiv, splits={"train": "train", "test": "val"}),
}


ONE, TWO = "one", "two"
ENOUGH = 2.5  # of 2.98: ours, as the paper has rewards only
WRITER = "writer"  # a team of one: it writes both parts in one answer
BREAK = re.compile(r"^\s*-{3,}\s*$", re.MULTILINE)

BOTH = "Do two things, and write a line with nothing but --- between the results."

Kind = Literal["tldr", "arxiv"]

ASKED: Mapping[str, Mapping[str, str]] = {
    "tldr": {
        ONE: "Sum up the following post in one short sentence, in plain words. Write the sentence and nothing else.",
        TWO: (
            "Sum up the following post in a few sentences: who is concerned, what happened, and what is asked. Use "
            "other words than the post does, and transition words between the sentences. Write the summary and "
            "nothing else."
        ),
    },
    "arxiv": {
        ONE: (
            "From the following abstract, write the first paragraph of an introduction: background and motivation. "
            "Write the paragraph and nothing else."
        ),
        TWO: (
            "From the following abstract, write the second paragraph of an introduction: the method and what follows "
            "from it. The first paragraph, on background and motivation, is written by somebody else. Write the "
            "paragraph and nothing else."
        ),
    },
}


class JointWriting(PublicTasks):
    """Posts or abstracts, from public sets or files. An answer is {"one", "two"}: text.

    Options:
        bands: parameters of the reward, "tldr" or "arxiv".
        shift: added to the score in training. With -2.98 the reward is at most 0, so that turns after a good text do
            not add to the return of a later one.
    """

    quick = True

    sets: ClassVar = SETS
    bands: Kind = "tldr"
    shift: float = 0.0

    @property
    def limits(self) -> Bands:
        return BANDS[self.bands]

    def score(self, task: Task, answer: Any) -> float:
        """The sum of the levels, 0 to 2.98."""
        return sum(levels(answer[ONE], answer[TWO], self.limits).values())

    def success(self, task: Task, answer: Any) -> bool:
        return self.score(task, answer) >= ENOUGH

    def public_score(self, task: Task, answer: Any) -> float:
        """1 if the word counts of both parts are in range, else 0."""
        return float(structure(answer[ONE], answer[TWO], self.limits))


class TwoWriters(Workflow):
    """Both agents write simultaneously; in further turns each sees both parts and writes again.

    A team of one, the agent "writer", writes both parts in one answer, with a line of dashes between them.

    Options:
        kind: the task in the prompts, "tldr" or "arxiv".
        turns: number of joint moves; 1 in the paper's training, 2 in its one-round discussion.
        order: "parallel", or "sequential" (the paper's pipeline): "two" writes after "one" and sees its part.
    """

    kind: Kind = "tldr"
    turns: Positive = 1
    order: Literal["parallel", "sequential"] = "parallel"

    async def run(self, task: Task, team: Team) -> dict[str, str]:
        agents = (WRITER,) if team.agents == (WRITER,) else (ONE, TWO)
        parts: dict[str, str] = {}
        for _ in range(self.turns):
            if self.order == "parallel":
                acted = await team.act({agent: self.sees(task, agent, parts) for agent in agents})
            else:
                acted = {}
                for agent in agents:
                    one = acted[ONE].text if ONE in acted else ""
                    acted[agent] = await team[agent].act(self.sees(task, agent, parts, one))
            if agents == (WRITER,):
                texts = [text.strip() for text in BREAK.split(acted[WRITER].text, maxsplit=1)]
                if len(texts) == 1:
                    team.invalid(acted[WRITER], "no line of dashes between two parts")
                parts = dict(zip((ONE, TWO), [*texts, ""], strict=False))
            else:
                parts = {agent: action.text for agent, action in acted.items()}
            team.propose(parts)
        return parts

    def sees(self, task: Task, agent: str, parts: Mapping[str, str], one: str = "") -> str:
        """What to write, the text, and in later turns both parts. `one`: part one of the same turn, if written."""
        asked = ASKED[self.kind]
        lines = [BOTH, f"First: {asked[ONE]}", f"Second: {asked[TWO]}"] if agent == WRITER else [asked[agent]]
        lines += ["", task.prompt.strip()]
        if one:
            lines += ["", f"Part one, by another writer: {one}", "Build on it, and expand it."]
        if parts:
            lines += ["", "What was written before:", f"Part one: {parts[ONE]}", f"Part two: {parts[TWO]}"]
            lines += ["", "Write it anew, and better."]
        return "\n".join(lines)


NOUNS = ("apples", "birds", "clouds", "dogs", "engines", "farms", "gardens", "horses", "islands", "jewels")
MORE = ("bright", "cold", "deep", "early", "fast", "gentle")
LINKS = ("however", "therefore", "indeed")
TINY = Bands((2, 12), Band(1.1, 1.6, 3.2, 5.0), Band(1.3, 2.0), "two", 0.25)


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

    def _random_task(self, rng: random.Random) -> tuple[str, Task]:
        topic = " ".join(sorted(rng.sample(NOUNS, 3), key=lambda _: rng.random()))
        return topic, Task(f"word-writing {topic}", topic)


class WordWriters(TwoWriters):
    """`two-writers` with observations in the words of tiny models: which part to write, and the topic."""

    def sees(self, task: Task, agent: str, parts: Mapping[str, str], one: str = "") -> str:
        return f"{agent} {task.prompt}"
