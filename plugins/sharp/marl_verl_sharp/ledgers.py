"""Three ledgers: a question with one right, one irrelevant and one wrong ledger.

The planner is asked for the number of an item. It sends one item to three workers, each of which looks it up in its own
ledger and reports:

    reader   has this year's ledger: the right number, which the team cannot know otherwise.
    idler    has a ledger of letters: its report is never needed.
    gossip   has last year's ledger: another, wrong number for every item.

So one worker can be useful, one is idle, and one is harmful. The planner sees their reports, but no ledger.
"""

import random
from collections.abc import Mapping
from typing import Any

from marl_verl import Task, Workflow
from marl_verl.episode import CallError, Team
from marl_verl.tasks import DrawnTasks

PLANNER, READER, IDLER, GOSSIP = "planner", "reader", "idler", "gossip"
WORKERS = (READER, IDLER, GOSSIP)
ITEMS = ("red", "blue", "green", "white", "black", "grey")
DIGITS = tuple("0123456789")
LETTERS = tuple("abcdefgh")
NOTHING = "none"  # no item asked, found or reported; also the placeholder of a masked worker
EVERYTHING = "all"  # not a page of any ledger: looking it up raises LookupError
REPORTS = (*DIGITS, *LETTERS, NOTHING)


class ThreeLedgers(DrawnTasks):
    """Questions on random ledgers of six items."""

    quick = True
    name = "three-ledgers"
    agents = (PLANNER, *WORKERS)

    def score(self, task: Task, answer: Any) -> float:
        """Terminal accuracy: 1 when the answer is this year's number of the item, else 0."""
        return float(answer.strip() == task.data["ledgers"][READER][task.data["item"]])

    def public_score(self, task: Task, answer: Any) -> float:
        """1 when the answer is a number, right or not, else 0: computed without the ledgers."""
        return float(answer.strip() in DIGITS)

    def vocabulary(self) -> list[str]:
        words = ["item", "beside", "asked", "found", NOTHING, EVERYTHING]
        return [*ITEMS, *DIGITS, *LETTERS, PLANNER, *WORKERS, *words]

    def _demonstration(self, agent: str, task: Task, rng: random.Random, good: float) -> tuple[str, str]:
        """Right: the planner asks for the item and uses the reader's report; reader and idler look up the item and
        report the result, the gossip reports nothing.

        The careless planner asks for the other item and uses the last reported number, and the careless worker looks up
        "all" and reports the opposite way; the gossip always looks up the item. Reports may be missing, as in masked
        runs.
        """
        right, first = rng.random() < good, rng.random() < 0.5
        item = task.data["item"]
        if agent == PLANNER and first:
            return f"{PLANNER} {task.prompt}", item if right else task.data["beside"]
        entries = {worker: task.data["ledgers"][worker][item] for worker in WORKERS}
        if agent == PLANNER:
            reports = {worker: NOTHING if rng.random() < 0.3 else entries[worker] for worker in WORKERS}
            last = reports[READER] if reports[GOSSIP] == NOTHING else reports[GOSSIP]
            return reports_seen(task, reports), reports[READER] if right else last
        if first:
            return f"{agent} asked {item}", item if right or agent == GOSSIP else EVERYTHING
        entry = NOTHING if rng.random() < 0.2 else entries[agent]
        return f"{agent} found {entry}", entry if right == (agent != GOSSIP) else NOTHING

    def _random_task(self, rng: random.Random) -> tuple[str, Task]:
        item, beside = rng.sample(ITEMS, 2)
        new = {name: rng.choice(DIGITS) for name in ITEMS}
        old = {name: rng.choice([digit for digit in DIGITS if digit != new[name]]) for name in ITEMS}
        letters = {name: rng.choice(LETTERS) for name in ITEMS}
        question = f"{item} {''.join(new.values())}"
        data = {"item": item, "beside": beside, "ledgers": {READER: new, IDLER: letters, GOSSIP: old}}
        return question, Task(f"three-ledgers {question} beside {beside}", f"item {item} beside {beside}", data)


def look_up(ledger: Mapping[str, str], words: str) -> str:
    """The workers' tool: the entry of an item in a ledger. LookupError if the words are not an item."""
    if words not in ledger:
        raise LookupError(f"no page '{words}'")
    return ledger[words]


def reports_seen(task: Task, reports: Mapping[str, str]) -> str:
    return f"{PLANNER} item {task.data['item']} " + " ".join(f"{worker} {reports[worker]}" for worker in WORKERS)


class PlannerAndWorkers(Workflow):
    """One act of the planner, two joint moves of the workers with a tool call between them, one act of the planner.

    A worker that answers "none" makes no call, and reports "none".

    Options:
        alone: without workers: the planner looks up the item in all ledgers itself. The paper's single-agent baseline.
    """

    alone: bool = False

    async def run(self, task: Task, team: Team) -> str:
        ask = await team[PLANNER].act(f"{PLANNER} {task.prompt}")
        asked = ask.text.strip()
        known = asked in ITEMS
        if not known:
            team.invalid(ask, "no item")
        if self.alone:
            reports = {worker: await _looked_up(team, PLANNER, task, worker, asked) for worker in WORKERS}
        else:
            reports = await self._reports(task, team, asked if known else NOTHING)
        answer = await team[PLANNER].act(reports_seen(task, reports))
        if answer.text.strip() not in DIGITS:
            team.invalid(answer, "no number")
        return answer.text

    async def _reports(self, task: Task, team: Team, asked: str) -> dict[str, str]:
        """Worker -> the one word that it reports."""
        looks = await team.act({worker: f"{worker} asked {asked}" for worker in WORKERS})
        entries = {
            worker: await _looked_up(team, worker, task, worker, look.text.strip()) for worker, look in looks.items()
        }
        actions = await team.act({worker: f"{worker} found {entries[worker]}" for worker in WORKERS})
        reports = {worker: action.text.strip() for worker, action in actions.items()}
        for worker, word in reports.items():
            if word not in REPORTS:
                team.invalid(actions[worker], "no report of one number or letter")
                reports[worker] = NOTHING
        return reports


async def _looked_up(team: Team, agent: str, task: Task, ledger: str, words: str) -> str:
    if words == NOTHING:
        return NOTHING
    try:
        return str(await team[agent].call(look_up, task.data["ledgers"][ledger], words))
    except CallError:
        return NOTHING
