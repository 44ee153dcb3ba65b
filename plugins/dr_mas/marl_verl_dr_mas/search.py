"""Search as in the paper: a verifier routes to a searcher or an answerer, up to four steps.

Task rows have the question as `prompt`, `data.answers` (any of them is right) and `data.paragraphs`, each with `title`
and `text`: the search corpus of this question. `marl_verl_dr_mas.convert` makes such rows from HotpotQA. The paper uses
a server with a dense index of Wikipedia; here the search is BM25 over the question's paragraphs.
"""

from __future__ import annotations

import re
import string
from typing import TYPE_CHECKING, Any, Literal

from marl_verl import MarlError, Task, TaskSet, Workflow
from marl_verl.tasks import clipped, verdict
from marl_verl_dr_mas.bm25 import ranked

if TYPE_CHECKING:
    from marl_verl.episode import Action, Team

VERIFIER, SEARCHER, ANSWERER = "verifier", "searcher", "answerer"
YES, NO = "yes", "no"
_ARTICLES = re.compile(r"\b(a|an|the)\b")


class SearchTasks(TaskSet):
    """Questions with short answers and paragraphs to search, from a file."""

    def score(self, task: Task, answer: Any) -> float:
        """1 when the answer is one of the right ones, in lower case and without articles and punctuation, else 0.

        Raises:
            MarlError: the answer is not text, or the task's row has no `data.answers`.
        """
        right = task.data.get("answers")
        if not isinstance(right, list) or not right:
            raise MarlError(f"task '{task.id}' has no list 'data.answers' to compare with, it has {right!r:.60}")
        given = normal(_text(answer))
        return float(bool(given) and given in [normal(str(each)) for each in right])

    def public_score(self, task: Task, answer: Any) -> float:
        """1 when there is an answer, right or not, else 0. MarlError unless it is a text."""
        return float(bool(normal(_text(answer))))


def _text(answer: Any) -> str:
    if not isinstance(answer, str):
        raise MarlError(f"dr-mas-search scores a text, got {type(answer).__name__}")
    return answer


def normal(answer: str) -> str:
    """The normal form in which answers are compared (Rajpurkar et al. 2016, SQuAD)."""
    plain = "".join(letter for letter in answer.lower() if letter not in string.punctuation)
    return " ".join(_ARTICLES.sub(" ", plain).split())


def tagged(text: str, tag: str) -> str | None:
    """The content of the first `<tag>...</tag>`; None without one, or if it is empty."""
    found = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.IGNORECASE | re.DOTALL)
    return (found[1].strip() or None) if found else None


class _Search(Workflow):
    """Base of both workflows: search, and collect the results.

    Options:
        steps: maximum number of steps; the last one is an answer.
        found: number of paragraphs that a search returns.
        kept: maximum characters of a paragraph that are shown; the middle of a longer one is cut.
    """

    steps: int = 4
    found: int = 3
    kept: int = 1200

    def __post_init__(self) -> None:
        for name, value in (("steps", self.steps), ("found", self.found), ("kept", self.kept)):
            if value < 1:
                raise MarlError(f"{name} must be 1 or more, got {value}")

    async def search(self, task: Task, team: Team, agent: str, query: str) -> str:
        """Search, and return query and results in the form of the history."""

        def look_up(asked: str) -> str:
            paragraphs = [f"{each['title']}: {each['text']}" for each in task.data["paragraphs"]]
            best = ranked(asked, paragraphs)[: self.found]
            return "\n".join(clipped(paragraphs[index], self.kept) for index in best) or "Nothing was found."

        information = await team[agent].call(look_up, query)
        return f"<search>{query}</search>\n<information>{information}</information>"

    def answer(self, team: Team, action: Action) -> str:
        """The answer in an action; empty, and the action marked invalid, without one."""
        given = tagged(action.text, "answer")
        if given is None:
            team.invalid(action, "no answer")
        return given or ""


class SearchTeam(_Search):
    """In each step the verifier decides whether the results suffice: if so the answerer answers, else the searcher
    searches. In the last step the answerer answers without a verdict.

    Options:
        unparseable: the verdict if the verifier's cannot be parsed; `answer` is the authors' choice. Its action is
            marked invalid in both cases.
    """

    unparseable: Literal["answer", "search"] = "answer"

    async def run(self, task: Task, team: Team) -> str:
        """Return the answerer's answer."""
        history: list[str] = []
        for _ in range(self.steps - 1):
            review = await team[VERIFIER].act(verifier_sees(task, history))
            decision = verdict(review.text, (YES, NO))
            if decision is None:
                team.invalid(review, "no verdict")
                decision = YES if self.unparseable == "answer" else NO
            if decision == YES:
                break
            action = await team[SEARCHER].act(searcher_sees(task, history))
            query = tagged(action.text, "search")
            if query is None:
                team.invalid(action, "no query")
                continue
            history.append(await self.search(task, team, SEARCHER, query))
        return self.answer(team, await team[ANSWERER].act(answerer_sees(task, history)))


class SearchAlone(_Search):
    """One agent, `answerer`, searches or answers: the paper's single-agent baseline."""

    async def run(self, task: Task, team: Team) -> str:
        """Return its answer."""
        history: list[str] = []
        for _ in range(self.steps - 1):
            action = await team[ANSWERER].act(alone_sees(task, history))
            if (given := tagged(action.text, "answer")) is not None:
                return given
            query = tagged(action.text, "search")
            if query is None:
                team.invalid(action, "neither a query nor an answer")
                continue
            history.append(await self.search(task, team, ANSWERER, query))
        return self.answer(team, await team[ANSWERER].act(answerer_sees(task, history)))


def _sees(task: Task, history: list[str], how: str) -> str:
    known = "\n".join(history) or "Nothing yet."
    return f"Question: {task.prompt}\n\nSearches so far, and what they found:\n{known}\n\n{how}"


def verifier_sees(task: Task, history: list[str]) -> str:
    """Question and searches; whether they are enough."""
    how = (
        "Think about whether this is enough to answer the question, and end with your decision: <verify>yes</verify> "
        "if it is, <verify>no</verify> if another search is needed."
    )
    return _sees(task, history, how)


def searcher_sees(task: Task, history: list[str]) -> str:
    """Question and searches; what to look for next."""
    return _sees(task, history, "Think about what is missing, and write one query: <search>your query</search>.")


def answerer_sees(task: Task, history: list[str]) -> str:
    """Question and searches; the answer."""
    return _sees(task, history, "Think, and give a short final answer: <answer>your answer</answer>.")


def alone_sees(task: Task, history: list[str]) -> str:
    """Question and searches; another search or the answer."""
    how = (
        "Think, and then do one of the two. If something is missing, write one query: <search>your query</search>. "
        "Else give a short final answer: <answer>your answer</answer>."
    )
    return _sees(task, history, how)
