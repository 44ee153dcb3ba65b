"""Look-up: a task and a workflow of marl-verl-search for tiny models. The answer is one word of the note on a name."""

import random
from typing import Annotated

from annotated_types import Interval
from marl_verl_search.answers import tagged
from marl_verl_search.routed import ANSWERER, NO, SEARCHER, VERIFIER, YES, SearchTeam
from marl_verl_search.tasks import SearchTasks

from marl_verl import Task, hookimpl
from marl_verl.tasks import DrawnTasks

NAMES = ("ada", "ben", "cleo", "dan", "eva", "finn", "gil", "hana")
COLOURS = ("red", "blue", "green", "black", "white", "grey")


class LookUpTasks(DrawnTasks, SearchTasks):
    """Notes such as "ada: red"; the question is a name.

    In careless demonstrations the verifier says yes, the searcher looks for the first name, the answerer says red.

    Options:
        notes: number of notes.
    """

    name = "look-up"
    agents = (VERIFIER, SEARCHER, ANSWERER)
    notes: Annotated[int, Interval(ge=2, le=len(NAMES))] = 4

    def vocabulary(self) -> list[str]:
        words = [*NAMES, *COLOURS, VERIFIER, SEARCHER, ANSWERER, "find", "found", "nothing"]
        verdicts = [f"<verify>{word}</verify>" for word in (YES, NO)]
        return [*words, *verdicts, *map(search, NAMES), *(f"<answer>{colour}</answer>" for colour in COLOURS)]

    def _demonstration(self, agent: str, task: Task, rng: random.Random, good: float) -> tuple[str, str]:
        careful, colour = rng.random() < good, task.data["answers"][0]
        known = agent == ANSWERER or (agent == VERIFIER and rng.random() < 0.5)
        right, careless = {
            VERIFIER: (f"<verify>{YES if known else NO}</verify>", f"<verify>{YES}</verify>"),
            SEARCHER: (search(task.prompt), search(NAMES[0])),
            ANSWERER: (f"<answer>{colour}</answer>", "<answer>red</answer>"),
        }[agent]
        return sees(agent, task, f"{task.prompt} {colour}" if known else ""), right if careful else careless

    def _random_task(self, rng: random.Random) -> tuple[str, Task]:
        names = sorted(rng.sample(NAMES, self.notes))
        colours = [rng.choice(COLOURS) for _ in names]
        asked = rng.randrange(self.notes)
        shown = " ".join(f"{name} {colour}" for name, colour in zip(names, colours, strict=True))
        paragraphs = [{"title": name, "text": colour} for name, colour in zip(names, colours, strict=True)]
        data = {"answers": [colours[asked]], "paragraphs": paragraphs}
        return f"{shown} {names[asked]}", Task(f"look-up {names[asked]} in {shown}", names[asked], data)


class TinySearchTeam(SearchTeam):
    """`search-routed` with observations in the words of tiny models: the name, and the last search's first note."""

    steps: int = 3
    found: int = 1

    def sees(self, role: str, task: Task, history: list[str]) -> str:
        return sees(role, task, _note(history))


def sees(agent: str, task: Task, note: str) -> str:
    """The observation of each agent, which begins with its name: the agents may share a policy."""
    return f"{agent} find {task.prompt} found {note}" if note else f"{agent} find {task.prompt} nothing"


def search(name: str) -> str:
    return f"<search>{name}</search>"


def _note(history: list[str]) -> str:
    words = (tagged(history[-1], "information") or "").replace(":", " ").split() if history else []
    return " ".join(words) if words and all(word in (*NAMES, *COLOURS) for word in words) else ""


@hookimpl
def marl_register(registry):
    registry.task("look-up", LookUpTasks)
    registry.workflow("look-up", TinySearchTeam)
