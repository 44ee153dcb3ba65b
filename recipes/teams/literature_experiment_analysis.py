"""A reader finds the law of an instrument in the literature, an experimenter reads the instrument, and an analyst
computes the value from both."""

import asyncio
from functools import partial

from marl_verl_search.answers import tagged
from marl_verl_search.source import Searching
from marl_verl_search.tasks import SearchTasks

from marl_verl import Task, hookimpl
from marl_verl.episode import CallError
from marl_verl.tasks import DrawnTasks, quick

NAMES = ("ada", "ben", "cleo", "dan", "eva", "finn", "gil", "hana")
TAGS = {"reader": "search", "experimenter": "measure", "analyst": "answer"}


def measured(readings, name):
    return readings[name]


class LiteratureExperimentAnalysis(Searching):
    """Literature and experiment are independent of each other, so both agents act at the same time."""

    async def run(self, task, team):
        readings = task.data["readings"]
        laws, reading = await asyncio.gather(
            self.result(task, team, "reader", lambda name: self.searched(team, "reader", task, name, 1)),
            self.result(task, team, "experimenter", partial(team["experimenter"].call, measured, readings)),
        )
        action = await team["analyst"].act(f"{' '.join(laws).replace(':', '')} reading {''.join(reading)}")
        return tagged(action.text, "answer") or ""

    async def result(self, task, team, agent, look):
        """What the search or the experiment of an agent returns; "nothing" where there is none of that name."""
        action = await team[agent].act(f"{TAGS[agent]} {task.prompt}")
        try:
            return await look(tagged(action.text, TAGS[agent]) or "")
        except CallError:
            return ["nothing"]


class Instruments(DrawnTasks, SearchTasks):
    """The literature says "ada: add 3" and the instrument shows 4: the value is 7, modulo 10."""

    name = "instruments"
    agents = tuple(TAGS)

    def vocabulary(self):
        pairs = [pair for agent in self.agents for pair in self.demonstrations(agent, 2000, 0, 0.5)]
        return sorted({word for pair in pairs for text in pair for word in text.split()} | {"nothing"})

    def _demonstration(self, agent, task, rng, good):
        name, (value,), reading = task.prompt, task.data["answers"], task.data["readings"][task.prompt]
        seen, right, careless = f"{TAGS[agent]} {name}", name, NAMES[0]  # a careless agent asks for the first name
        if agent == "analyst":
            seen, right, careless = f"{name} {task.data['law']} reading {reading}", value, reading
        return seen, f"<{TAGS[agent]}>{right if rng.random() < good else careless}</{TAGS[agent]}>"

    def _random_task(self, rng):
        drawn = {name: (rng.randrange(10), rng.randrange(10)) for name in rng.sample(NAMES, 4)}
        (name, (law, reading)), *_ = drawn.items()
        notes = [{"title": title, "text": f"add {added}"} for title, (added, _) in drawn.items()]
        readings = {title: str(shown) for title, (_, shown) in drawn.items()}
        data = {"paragraphs": notes, "readings": readings, "law": f"add {law}", "answers": [str((law + reading) % 10)]}
        return str(drawn), Task(f"instruments {drawn}", name, data)


@quick
def right_instrument(task, turn, episode):  # 1 if the reader or the experimenter asks for the instrument of the task
    return float(tagged(turn.action.text, TAGS[turn.agent]) == task.prompt)


@hookimpl
def marl_register(registry):
    registry.task("instruments", Instruments)
    registry.workflow("literature-experiment-analysis", LiteratureExperimentAnalysis)
    registry.reward("right-instrument", right_instrument)
