"""Each item has its place on one of six shelves, which no task tells. Notes of earlier episodes do."""

import random
import zlib

from marl_verl import Task, TaskSet, Workflow, hookimpl

SHELVES = ("red", "blue", "green", "black", "white", "grey")
ITEMS = [a + b for a in ("ba", "do", "fi", "ku", "le", "mo", "ni", "ru", "sa", "tu") for b in ("la", "se", "ti", "vo")]
CUSTOMERS = ("ada", "ben", "cleo", "dan", "eva", "finn", "gil", "hana", "ivo", "jan")


class Shelves(TaskSet):
    def generate(self, split, count, seed):  # one task in ten is held out: items and customers are in both splits
        pairs = [(customer, item) for item in ITEMS for customer in CUSTOMERS]
        chosen = [pair for pair in pairs if (zlib.crc32(" ".join(pair).encode()) % 10 == 0) == (split == "test")]
        random.Random(seed).shuffle(chosen)
        return [Task(f"{item} for {customer}", item, {"shelf": place(item)}) for customer, item in chosen[:count]]

    def score(self, task, answer):
        return float(answer.strip() == task.data["shelf"])

    # for tiny models: all words, and what they say at first: a share `good` repeats the note

    def vocabulary(self):
        return [*ITEMS, *SHELVES, "note", "nothing"]

    def demonstrations(self, agent, count, seed, good):
        rng, pairs = random.Random(f"{agent} {seed}"), []
        for _ in range(count):
            item, noted, guess = rng.choice(ITEMS), rng.choice(SHELVES), rng.choice(SHELVES)
            known = rng.random() < 0.5
            notes = [f"{item} {noted}"] if known else []
            pairs.append((sees(item, notes), noted if known and rng.random() < good else guess))
        return pairs


def place(item):
    return SHELVES[zlib.crc32(item.encode()) % len(SHELVES)]


def sees(item, notes):
    return f"{item} note {notes[0] if notes else 'nothing'}"


class Fetch(Workflow):
    """The clerk looks for a note, answers, and notes the shelf if the item was there."""

    async def run(self, task, team):
        notes = await team.memory.search(task.prompt, k=1)
        answer = await team["clerk"].act(sees(task.prompt, notes))
        if answer.text.strip() == task.data["shelf"]:  # the feedback
            await team.memory.note(f"{task.prompt} {answer.text.strip()}")
        return answer.text


@hookimpl
def marl_register(registry):
    registry.task("shelves", Shelves)
    registry.workflow("fetch", Fetch)
