"""A workflow whose acts other agents of the team judge: each act, two acts against each other, or the whole episode.

Both orders of a pair are asked, so that a judge who prefers a position gives both acts the same. Source: Zheng et al.,
arXiv 2306.05685, sections 3.1 (kinds) and 3.4 (swapped positions).
"""

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import field
from itertools import chain, combinations, pairwise
from typing import Any, Literal, cast

from marl_verl import MarlError, Task, Team, Workflow
from marl_verl.episode import ActRecord, Run
from marl_verl.errors import unknown
from marl_verl.options import build
from marl_verl.plugins import load

FIELDS = {"act": ("agent", "seen", "text"), "pair": ("first", "second"), "episode": ("transcript", "answer")}
NUMBER = r"(-?\d+(?:\.\d+)?)(?:\s*(?:/|out of)\s*\d+)?"

View = tuple[str, list[str], list[str]]
"""A prompt and the acts that it shows ("AGENT:SLOT"): those that it is about, or the first and the second of a pair."""


class Judged(Workflow):
    """Another workflow, after whose answer the judges act: each once per distinct prompt, all at the same time.

    The other workflow does not see the judges. Their verdicts decide role reward `judge-score`, not the answer.

    Options:
        of, options: the other workflow and its options.
        judges: agents that judge.
        agents: agents that are judged; null: all others.
        kind: "act"; "pair": the n-th acts of each two agents, or of one agent its successive acts; "episode".
        prompt: what a judge sees: a text with {task}, {data[NAME]}, and of an act {agent}, {seen}, {text}; of a pair
            {first}, {second}; of an episode {transcript}, {answer}.
        worst, best: the scale. The last number of a verdict becomes 0 to 1.
        marks: word -> score, in place of the scale: the last of these words counts. Of a pair it is the score of the
            first, {A: 1, B: 0} unless it is set.
        unparsed: the score of a verdict without a number on the scale, or a mark; of a pair, of both acts.
        early: each act is judged before the other workflow goes on, for samplers that score states (kind "act").
    """

    of: str
    judges: list[str]
    prompt: str
    options: dict[str, Any] = field(default_factory=dict)
    agents: list[str] | None = None
    kind: Literal["act", "pair", "episode"] = "act"
    worst: float = 0.0
    best: float = 10.0
    marks: dict[str, float] | None = None
    unparsed: float = 0.0
    early: bool = False

    def __post_init__(self) -> None:
        if not self.judges or set(self.judges) & set(self.agents or ()):
            raise MarlError(f"'judges' must name agents that are not in 'agents', got {self.judges}")
        if self.early and self.kind != "act":
            raise MarlError(f"'early' is for kind 'act': kind '{self.kind}' judges what is complete at the end")
        if wrong := [mark for mark in self.marks or () if not isinstance(mark, str)]:
            raise MarlError(f"'marks' must be words, got {wrong[0]!r}: quote yes and no, which YAML reads as booleans")
        if self.worst == self.best:
            raise MarlError(f"'worst' and 'best' must differ, got {self.best} for both")
        if self.kind == "pair" and not self.marks:
            self.marks = {"A": 1.0, "B": 0.0}
        self._inner = build(load().get("workflows", self.of), self.options, "marl.workflow.options.options")
        self.replayable = self._inner.replayable  # type: ignore[misc]  # that of external processes is not

    async def run(self, task: Task, team: Team) -> Any:
        bench = _Bench(self, task, team)
        bench.prompt(**dict.fromkeys(FIELDS[self.kind], ""))  # a wrong prompt fails before the first act
        others = [agent for agent in team.agents if agent not in self.judges]
        answer = await self._inner._begin(task, Team(cast(Any, bench), others))
        await bench.judge(bench.run.turns, answer)
        return answer

    def score(self, verdict: str) -> float | None:
        """The score in a verdict, None if there is none."""
        if self.marks:
            words = "|".join(map(re.escape, sorted(self.marks, key=len, reverse=True)))
            marks = re.findall(rf"(?<!\w)(?:{words})(?!\w)", verdict)
            return self.marks[marks[-1]] if marks else None
        numbers = re.findall(NUMBER, verdict)
        share = (float(numbers[-1]) - self.worst) / (self.best - self.worst) if numbers else -1.0
        return share if 0 <= share <= 1 else None


class _Bench:
    """The judges of one run, and the effects of its inner workflow."""

    def __init__(self, workflow: Judged, task: Task, team: Team) -> None:
        self.workflow, self.task, self.team, self.run = workflow, task, team, cast(Run, team.effects)
        self.judges = [team[agent] for agent in workflow.judges]
        self.agents = [team[agent].name for agent in workflow.agents or team.agents if agent not in workflow.judges]
        self.root, self.concurrent = asyncio.current_task(), False
        self.judged: set[str] = set()
        self.verdicts: dict[str, dict[str, float | None]] = {}  # prompt -> "JUDGE:SLOT" -> its score
        self.locks: dict[str, asyncio.Lock] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.run, name)

    async def act(self, *arguments: Any, **parameters: Any) -> Any:
        return await self._watched(self.run.act(*arguments, **parameters))

    async def act_jointly(self, *arguments: Any) -> Any:
        return await self._watched(self.run.act_jointly(*arguments))

    async def _watched(self, acting: Awaitable[Any]) -> Any:
        self.concurrent |= asyncio.current_task() is not self.root
        acted = await acting
        if self.workflow.early:
            actions = list(acted.values()) if isinstance(acted, dict) else [acted]
            await self.judge([turn for turn in self.run.turns if any(turn.action is action for action in actions)])
        return acted

    async def judge(self, turns: Iterable[ActRecord], answer: Any = None) -> None:
        """Let the judges act on turns that are not judged yet, and record their verdicts."""
        turns = sorted(turns, key=lambda turn: (turn.act.turn, turn.act.key))
        named = {":".join(turn.act.key): turn for turn in turns if turn.act.role in self.agents}
        if acts := {name: turn for name, turn in named.items() if name not in self.judged}:
            views = self._views(acts, answer)
            await asyncio.gather(*map(self._ask, dict.fromkeys(prompt for prompt, _, _ in views)))
            shown = [{"first": one, "second": two, "verdicts": self.verdicts[prompt]} for prompt, one, two in views]
            await self.team.call(recorded, list(acts), shown, self.workflow.unparsed)
            self.judged.update(acts)

    async def _ask(self, prompt: str) -> None:
        async with self.locks.setdefault(prompt, asyncio.Lock()):
            if prompt in self.verdicts:
                return
            slot = f"verdict-{hashlib.blake2b(prompt.encode(), digest_size=6).hexdigest()}"
            actions = await asyncio.gather(*(judge.act(prompt, slot) for judge in self.judges))
            scores = self.verdicts[prompt] = {}
            for judge, action in zip(self.judges, actions, strict=True):
                scores[f"{judge.name}:{slot}"] = score = self.workflow.score(action.text)
                if score is None:
                    self.team.invalid(action, "no score")

    def prompt(self, **fields: Any) -> str:
        """What a judge sees. MarlError for a field that is not there."""
        try:
            return self.workflow.prompt.format(task=self.task.prompt, data=self.task.data, **fields)
        except KeyError as error:
            valid = ["task", "data", *fields, *self.task.data]
            raise unknown("field of 'marl.workflow.options.prompt'", str(error.args[0]), valid) from error

    def _views(self, acts: Mapping[str, ActRecord], answer: Any) -> list[View]:
        if self.workflow.kind == "act":
            return [
                (self.prompt(agent=act.agent, seen=act.observation[-1]["content"], text=action.text), [name], [])
                for name, (act, action) in acts.items()
            ]
        if self.workflow.kind == "episode":
            turns, agents = self.run.turns, self.team.agents
            if self.concurrent:  # they are in the order of arrival
                turns = sorted(turns, key=lambda turn: (turn.act.turn, agents.index(turn.act.role), turn.act.key))
            lines = [f"{act.agent}: {action.text}" for act, action in turns]
            return [(self.prompt(transcript="\n".join(lines), answer=answer), list(acts), [])]
        sides = [[name for name, (act, _) in acts.items() if act.role == role] for role in self.agents]
        both = chain.from_iterable(zip(one, two, strict=False) for one, two in combinations(sides, 2))
        orders = [order for pair in (pairwise(sides[0]) if len(sides) == 1 else both) for order in (pair, pair[::-1])]
        text = {name: turn.action.text for name, turn in acts.items()}
        return [(self.prompt(first=text[one], second=text[two]), [one], [two]) for one, two in orders]


def recorded(acts: list[str], views: list[dict[str, Any]], unparsed: float) -> None:
    """Called for the journal, which so has the judged acts, what was shown of them, and the verdicts on it."""
