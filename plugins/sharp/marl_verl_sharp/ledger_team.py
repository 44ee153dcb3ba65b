"""The team on three ledgers: the planner asks, three workers look it up and report, the planner answers."""

from __future__ import annotations

from marl_verl import Task, Workflow
from marl_verl.episode import CallError, Team
from marl_verl_sharp.ledgers import (
    DIGITS,
    LETTERS,
    NOTHING,
    PLANNER,
    WORKERS,
    look_up,
    planner_sees,
    reports_seen,
    worker_found,
    worker_sees,
)

REPORTS = (*DIGITS, *LETTERS, NOTHING)


class PlannerAndWorkers(Workflow):
    """One act of the planner, two joint moves of the workers with a tool call between them, one act of the planner.

    A worker that answers "none" makes no call, and reports "none". "none" is also the placeholder of a masked worker.

    Options:
        alone: without workers: the planner looks up the item in all ledgers itself. The paper's single-agent baseline.
    """

    alone: bool = False

    async def run(self, task: Task, team: Team) -> str:
        """Return the planner's answer."""
        ask = await team[PLANNER].act(planner_sees(task))
        asked = ask.text.strip()
        known = asked in task.data["ledgers"][WORKERS[0]]
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
        looks = await team.act({worker: worker_sees(worker, asked) for worker in WORKERS})
        found = {
            worker: await _looked_up(team, worker, task, worker, look.text.strip()) for worker, look in looks.items()
        }
        actions = await team.act({worker: worker_found(worker, found[worker]) for worker in WORKERS})
        reports = {}
        for worker, action in actions.items():
            word = action.text.strip()
            if word not in REPORTS:
                team.invalid(action, "no report of one number or letter")
            reports[worker] = word if word in REPORTS else NOTHING
        return reports


async def _looked_up(team: Team, agent: str, task: Task, ledger: str, words: str) -> str:
    """Look up words in a ledger; "none" if the call fails."""
    if words == NOTHING:
        return NOTHING
    try:
        return str(await team[agent].call(look_up, task.data["ledgers"][ledger], words))
    except CallError:
        return NOTHING
