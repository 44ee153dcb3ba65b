"""Random small workflows as data, policies with different candidates, and hash-based scores: for property tests.

Every observation contains all earlier actions, calls and draws (in a lane: those before the lanes and in that lane).
Scores are multiples of 1/8, so that sums are exact and ties occur.
"""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st

from marl_verl.algo.sampling import Candidate
from marl_verl.episode import Act, Action, CallError, Episode, Team, Turn, Workflow
from marl_verl.tasks import Task, TaskSet
from marl_verl_testing import ScriptedPolicy

__all__ = ["Branch", "Call", "Hashed", "Joint", "Lanes", "Mark", "Programmed", "Solo", "workflows"]
__all__ += ["AGENTS", "TASK", "acts_of", "eighth", "measure", "number", "own_words", "talkers"]

AGENTS = ("planner", "solver", "critic")
TASK = Task("q1", "question")


def number(*parts: Any) -> int:
    """A hash of the parts as an integer."""
    return int.from_bytes(hashlib.blake2s(repr(parts).encode(), digest_size=8).digest(), "big")


def eighth(*parts: Any) -> float:
    """A hash of the parts as one of 0, 1/8, ..., 1."""
    return number(*parts) % 9 / 8


def talkers(seed: int = 0, agents: Sequence[str] = AGENTS) -> ScriptedPolicy:
    """A policy per agent that replies with one to four letters, which depend on observation, session and candidate."""

    def reply(agent: str) -> Callable[[Act, int, Candidate], str]:
        def say(act: Act, session: int, candidate: Candidate) -> str:
            chosen = number(seed, agent, act.key, act.observation, session, candidate)
            return f"{chosen:016x}"[: 1 + chosen % 4]

        return say

    return ScriptedPolicy({agent: reply(agent) for agent in agents})


class Hashed(TaskSet):
    """Scores an answer by a hash; the public score is another hash."""

    def score(self, task: Task, answer: Any) -> float:
        return eighth("score", task.id, answer)

    def public_score(self, task: Task, answer: Any) -> float:
        return eighth("public", task.id, answer)


def own_words(task: Task, turn: Turn, episode: Episode) -> float:
    """A role reward that depends on the turn, the length of its episode and the answer."""
    return eighth("role", turn.agent, turn.action.text, len(episode.turns), episode.answer)


class Solo(NamedTuple):
    """One agent acts."""

    agent: str


class Joint(NamedTuple):
    """Several agents act jointly; `new`: agents that are spawned for it, as many as the last message says."""

    agents: tuple[str, ...]
    new: bool = False


class Lanes(NamedTuple):
    """One agent acts in several named slots concurrently: `lengths[i]` acts in slot i, each followed by a call."""

    agent: str
    lengths: tuple[int, ...]


class Call(NamedTuple):
    """A call, for an agent or the team, of a pure function of the last message. Some calls raise."""

    agent: str | None


class Branch(NamedTuple):
    """The next steps depend on the last message."""

    even: "tuple[Any, ...]"
    odd: "tuple[Any, ...]"


class Mark(NamedTuple):
    """`propose` an answer, `draw` a random number, mark actions as `invalid` (some are), `fail` (sometimes)."""

    kind: str


Step = Solo | Joint | Lanes | Call | Branch | Mark


def measure(text: str) -> int:
    if number("call", text) % 5 == 0:
        raise ValueError(f"cannot measure {text}")
    return number(text) % 100


class Programmed(Workflow):
    """Executes its program and answers with all messages."""

    program: "tuple[Step, ...]" = ()

    async def run(self, task: Task, team: Team) -> str:
        history = [task.prompt]
        await self._do(self.program, history, team)
        return "\n".join(history)

    async def _do(self, program: "Sequence[Step]", history: list[str], team: Team) -> None:
        last: list[Action] = []
        for step in program:
            if isinstance(step, Solo):
                last = [await team[step.agent].act("\n".join(history))]
                history.append(f"{step.agent}: {last[0].text}")
            elif isinstance(step, Joint):
                some = step.agents[number(history[-1]) % len(step.agents) :]
                agents = [team.spawn(role, "new").name for role in some] if step.new else step.agents
                moves = await team.act({agent: "\n".join([*history, f"you are {agent}"]) for agent in agents})
                last = list(moves.values())
                history += [f"{agent}: {action.text}" for agent, action in moves.items()]
            elif isinstance(step, Lanes):
                at = len(history)
                slots = [(f"lane{at}at{place}", acts) for place, acts in enumerate(step.lengths)]
                lanes = [self._lane(slot, acts, step.agent, history[:], team) for slot, acts in slots]
                history += [line for lane in await asyncio.gather(*lanes) for line in lane[at:]]
            elif isinstance(step, Call):
                await self._call(step.agent, history, team)
            elif isinstance(step, Branch):
                await self._do(step.even if number(history[-1]) % 2 == 0 else step.odd, history, team)
            elif step.kind == "propose":
                team.propose("\n".join([*history, "so far"]))
            elif step.kind == "draw":
                history.append(f"drawn: {team.random.randrange(100)}")
            elif step.kind == "invalid":
                for action in last:
                    if number("invalid", action.text) % 2:
                        team.invalid(action, f"unexpected {action.text}")
            elif step.kind == "fail" and number("fail", history[-1]) % 4 == 0:
                raise ValueError(f"cannot go on after {history[-1]}")

    async def _lane(self, slot: str, acts: int, agent: str, history: list[str], team: Team) -> list[str]:
        for _ in range(acts):
            action = await team[agent].act("\n".join([*history, slot]), slot=slot)
            history.append(f"{slot}: {action.text}")
            await self._call(agent, history, team)
        return history

    async def _call(self, agent: str | None, history: list[str], team: Team) -> None:
        try:
            value = await (team.call(measure, history[-1]) if agent is None else team[agent].call(measure, history[-1]))
        except CallError as error:
            value = str(error)
        history.append(f"measured: {value}")


def acts_of(program: "Sequence[Step]") -> int:
    counts: dict[type, Callable[[Any], int]] = {
        Solo: lambda step: 1,
        Joint: lambda step: len(step.agents),
        Lanes: lambda step: sum(step.lengths),
        Branch: lambda step: max(acts_of(step.even), acts_of(step.odd)),
    }
    return sum(counts[type(step)](step) for step in program if type(step) in counts)


@st.composite
def workflows(draw: st.DrawFn, sequential: bool = False, failing: bool = False, acts: int = 6) -> Programmed:
    """Workflows of 1 to `acts` acts by up to three agents; `sequential`: without joint moves and lanes; `failing`: some
    raise after some actions."""
    agents = st.sampled_from(AGENTS)
    solo, call = st.builds(Solo, agents), st.builds(Call, st.none() | agents)
    some = st.lists(solo | call, max_size=2).map(tuple)
    branch = st.builds(Branch, some, some)
    mark = st.sampled_from([Mark(kind) for kind in ("propose", "draw", "invalid", *(["fail"] if failing else []))])
    who = st.lists(agents, min_size=1, max_size=len(AGENTS), unique=True).map(tuple)
    lengths = st.sampled_from([(1, 1), (1, 2), (2, 1), (1, 1, 1)])
    kinds: list[st.SearchStrategy[Any]] = [solo, solo, call, branch, mark]
    if not sequential:
        kinds += [st.builds(Joint, who, st.booleans()), st.builds(Lanes, agents, lengths)]
    steps: list[Step] = [draw(solo)]
    for step in draw(st.lists(st.one_of(kinds), min_size=1, max_size=6)):
        if acts_of([*steps, step]) <= acts:
            steps.append(step)
    return Programmed((*steps[1:], steps[0]) if draw(st.booleans()) else tuple(steps))
