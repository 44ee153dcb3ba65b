"""A verifier routes to a searcher or an answerer, up to four steps; a single agent; and their role rewards.

Source: Dr. MAS, arXiv 2602.08847, and its public code. The wording of the prompts is our own. Where a verdict cannot be
parsed, the authors' code silently takes it as "yes"; here this is an option, and the action is marked invalid.
"""

import json
import re
from typing import Literal

from marl_verl_datasets import clipped, verdict

from marl_verl import Task
from marl_verl.episode import Action, CallError, Episode, Team, Turn
from marl_verl.options import Positive
from marl_verl.tasks import quick
from marl_verl_search.answers import normalised, tagged
from marl_verl_search.source import Searching
from marl_verl_search.tasks import answers_of

VERIFIER, SEARCHER, ANSWERER = "verifier", "searcher", "answerer"
ALONE = "alone"  # one agent that searches and answers
YES, NO = "yes", "no"
_INFORMATION = re.compile("<information>(.*?)</information>", re.DOTALL)
HOW = {
    VERIFIER: "Think about whether this is enough to answer the question, and end with your decision: "
    "<verify>yes</verify> if it is, <verify>no</verify> if another search is needed.",
    SEARCHER: "Think about what is missing, and write one query: <search>your query</search>.",
    ANSWERER: "Think, and give a short final answer: <answer>your answer</answer>.",
    ALONE: "Think, and then do one of the two. If something is missing, write one query: <search>your query</search>. "
    "Else give a short final answer: <answer>your answer</answer>.",
}
"""Role -> the end of its observations."""


class _Search(Searching):
    """Base of both workflows: search, and collect the results.

    Options:
        steps: maximum number of steps; the last one is an answer.
        found: number of paragraphs that a search returns.
        kept: maximum characters of a paragraph that are shown; the middle of a longer one is cut.
    """

    steps: Positive = 4
    found: Positive = 3
    kept: Positive = 1200

    async def search(
        self, task: Task, team: Team, action: Action, agent: str, history: list[str], otherwise: str
    ) -> None:
        """Add an action's query and its results to the history; without one the action is marked as `otherwise`."""
        if (query := tagged(action.text, "search")) is None:
            return team.invalid(action, otherwise)
        try:
            best = await self.searched(team, agent, task, query, self.found)
        except CallError:
            best = []
        information = "\n".join(clipped(text, self.kept) for text in best) or "Nothing was found."
        history.append(f"<search>{query}</search>\n<information>{information}</information>")

    def answer(self, team: Team, action: Action) -> str:
        """The answer in an action; empty, and the action marked invalid, without one."""
        if (answer := tagged(action.text, "answer")) is None:
            team.invalid(action, "no answer")
        return answer or ""

    def sees(self, role: str, task: Task, history: list[str]) -> str:
        known = "\n".join(history) or "Nothing yet."
        return f"Question: {task.prompt}\n\nSearches so far, and what they found:\n{known}\n\n{HOW[role]}"


class SearchTeam(_Search):
    """In each step the verifier decides whether the results suffice: if so the answerer answers, else the searcher
    searches. In the last step the answerer answers without a verdict.

    Options:
        unparseable: the verdict if the verifier's cannot be parsed; `answer` is the authors' choice. Its action is
            marked invalid in both cases.
    """

    unparseable: Literal["answer", "search"] = "answer"

    async def run(self, task: Task, team: Team) -> str:
        self.check_source(task)
        history: list[str] = []
        for _ in range(self.steps - 1):
            review = await team[VERIFIER].act(self.sees(VERIFIER, task, history))
            decision = verdict(review.text, (YES, NO))
            if decision is None:
                team.invalid(review, "no verdict")
            if decision == YES or (decision is None and self.unparseable == "answer"):
                break
            action = await team[SEARCHER].act(self.sees(SEARCHER, task, history))
            await self.search(task, team, action, SEARCHER, history, "no query")
        return self.answer(team, await team[ANSWERER].act(self.sees(ANSWERER, task, history)))


class SearchAlone(_Search):
    """One agent, `answerer`, searches or answers: the paper's single-agent baseline."""

    async def run(self, task: Task, team: Team) -> str:
        self.check_source(task)
        history: list[str] = []
        for _ in range(self.steps - 1):
            action = await team[ANSWERER].act(self.sees(ALONE, task, history))
            if (answer := tagged(action.text, "answer")) is not None:
                return answer
            await self.search(task, team, action, ANSWERER, history, "neither a query nor an answer")
        return self.answer(team, await team[ANSWERER].act(self.sees(ANSWERER, task, history)))


@quick
def verdict_right(task: Task, turn: Turn, episode: Episode) -> float:
    """Role reward `search-verdict`, -0.1 to 1: 1 if the verifier says yes where its observation has a right answer, or
    no where it has none, else 0; -0.1 without a verdict."""
    if (decision := verdict(turn.action.text, (YES, NO))) is None:
        return -0.1
    found = [text for message in turn.observation for text in _INFORMATION.findall(str(message.get("content")))]
    return float((decision == YES) == any(_contains(text, task) for text in found))


@quick
def search_hit(task: Task, turn: Turn, episode: Episode) -> float:
    """Role reward `search-hit`, -0.1 to 1: 1 if this act's search found a text with a right answer, else 0; -0.1 for an
    act without a query."""
    if (query := tagged(turn.action.text, "search")) is None:
        return -0.1
    calls = [call for call in episode.journal.calls() if call.agent == turn.agent]
    results = [json.loads(call.value or "[]") for call in calls if json.loads(call.arguments)[:1] == [query]]
    texts = (text for result in results if isinstance(result, list) for text in result)
    return float(any(_contains(str(text), task) for text in texts))


def _contains(text: str, task: Task) -> bool:
    words = f" {normalised(text)} "
    return any(f" {normalised(answer)} " in words for answer in answers_of(task))
