"""The team on multi-hop questions: the planner asks sub-questions, workers search and report, the planner answers."""

import asyncio
import re
from typing import Any

from marl_verl_sandbox import run_python
from marl_verl_sandbox.runs import SECONDS

from marl_verl import MarlError, Task
from marl_verl.episode import CallError, Team
from marl_verl.options import Positive
from marl_verl_search.answers import tagged
from marl_verl_search.pages import check_pages, read_page
from marl_verl_search.source import NOT_FOUND, Searching

NOTHING = "(no answer)"  # the report of a worker without one; also the placeholder of masked workers

ASK = re.compile(r'<ask to="([^"<>]*)">(.*?)</ask>', re.DOTALL | re.IGNORECASE)
TOOL = re.compile(r'<(search|read|python)(?:\s+url="([^"<>]*)")?\s*>(.*?)</\1>', re.DOTALL | re.IGNORECASE)


class PlannerAndSearchers(Searching):
    """In each round the planner gives some workers a sub-question each, and reads their reports; or it answers.

    A worker sees only its sub-question. It searches up to `searches` times, then reports. With `pages` it can also read
    a page, with `python` run a program.

    Options:
        planner: name of the planner; all other agents are workers.
        rounds: maximum rounds of sub-questions; after the last one the planner must answer.
        searches: maximum searches of a worker per sub-question; a page and a program count as one.
        paragraphs: maximum paragraphs that a search returns, and passages of a page.
        alone: without workers: the planner itself searches, at most `rounds` * `searches` times. The paper's
            single-agent baseline.
        pages: where pages are read: a file, or `web` (see `marl_verl_search.pages`).
        python: whether agents may run Python programs in the sandbox.
    """

    planner: str = "planner"
    rounds: Positive = 3
    searches: Positive = 3
    paragraphs: Positive = 3
    alone: bool = False
    pages: str | None = None
    python: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pages is not None:
            check_pages(self.pages)

    async def run(self, task: Task, team: Team) -> str:
        self.check_source(task)
        if self.alone:
            asked = f"Question: {task.prompt}\n\n"
            return await self._searched(team, self.planner, asked, task, "answer", self.rounds * self.searches) or ""
        workers = [name for name in team.agents if name != self.planner]
        if not workers:
            raise MarlError(f"the team has no worker besides '{self.planner}': add agents, or set alone to true")
        names = ", ".join(workers)
        how = f'To ask a worker ({names}): <ask to="{workers[0]}">sub-question</ask>, one for each at most.'
        seen = _said([], "", f"Question: {task.prompt}\n\n{how}\n{_FORM['answer']}")
        for left in range(self.rounds, -1, -1):
            action = await team[self.planner].act(seen)
            if (answer := tagged(action.text, "answer")) is not None:
                return answer
            questions = {worker: question.strip() for worker, question in ASK.findall(action.text) if worker in workers}
            if not questions or not left:
                team.invalid(action, "neither an answer nor a sub-question" if left else "no answer")
                break
            more = task, "report", self.searches
            work = (self._searched(team, worker, f"{question}\n\n", *more) for worker, question in questions.items())
            reports = zip(questions, await asyncio.gather(*work), strict=True)
            results = "\n\n".join(f"{worker} reports: {report or NOTHING}" for worker, report in reports)
            seen = _said(seen, action.text, f"{results}\n\n{_left('rounds of questions', left - 1, 'answer')}")
        return ""

    async def _searched(self, team: Team, agent: str, asked: str, task: Task, end: str, searches: int) -> str | None:
        """An agent's report, or answer, after at most `searches` searches; None without one."""
        tools = ["search"] + ["read"] * bool(self.pages) + ["python"] * self.python
        forms = "\n".join(_FORM[tool] for tool in tools)
        counted = "searches" if tools == ["search"] else "uses of tools"
        seen = _said([], "", f"{asked}{forms}\n{_FORM[end]}")
        for left in range(searches, -1, -1):
            action = await team[agent].act(seen)
            if (answer := tagged(action.text, end)) is not None:
                return answer
            uses = [use for use in TOOL.findall(action.text) if use[0].lower() in tools and (use[1] or use[2].strip())]
            if not uses or not left:
                team.invalid(action, f"no {end}" if uses else f"no {' or '.join(tools)} and no {end}")
                break
            try:
                result = await self._used(team, agent, task, *uses[-1])
            except CallError as error:
                if error.kind not in (*NOT_FOUND, "TimeoutError"):
                    raise  # no fault of the agent, such as a sandbox server that does not answer
                result = f"Error: {error}"
            seen = _said(seen, action.text, f"{result}\n\n{_left(counted, left - 1, end)}")
        return None

    async def _used(self, team: Team, agent: str, task: Task, tool: str, url: str, text: str) -> str:
        """The result of a tool, a recorded call. CallError if it fails."""
        if tool.lower() == "read":
            return str(await team[agent].call(read_page, self.pages, url.strip(), text.strip(), self.paragraphs))
        if tool.lower() == "python":
            return str(await team[agent].call(run_python, text.strip("\n"), SECONDS, True)) or "(no output)"
        return "\n\n".join(await self.searched(team, agent, task, text.strip(), self.paragraphs))


def _said(seen: list[dict[str, Any]], said: str, text: str) -> list[dict[str, Any]]:
    spoken = [{"role": "assistant", "content": said}] if said else []
    return [*seen, *spoken, {"role": "user", "content": text}]


def _left(uses: str, count: int, end: str) -> str:
    return f"{uses.capitalize()} left: {count}." if count else f"No {uses} left. {_FORM[end]}"


_FORM = {
    "search": "To search: <search>a few words</search>",
    "read": 'To read a page: <read url="https://...">what to look for</read>',
    "python": "To run a Python program, which must print its results: <python>the program</python>",
    "report": "To report what you found: <report>one or two sentences</report>",
    "answer": "To answer: <answer>the answer only, as short as it can be</answer>",
}
