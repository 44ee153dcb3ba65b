"""What an author writes and sees: `Workflow`, and the team that it acts through."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from random import Random
from typing import Any, Protocol

from marl_verl.episode.turn import Action
from marl_verl.options import Options
from marl_verl.tasks.base import Task

Seen = str | Sequence[Mapping[str, str]]
"""What an agent is shown: a text (one user message) or chat messages."""


class Workflow(Options):
    """How a team works on a task, as a plain async function. Annotated attributes are its options in config.

    Between its effects (`act`, `call`, `random`) a workflow must be deterministic: sampling, credit and inspection run
    it again from the journal. Keep state in local variables, reach the outside world through `team.call`, and draw from
    `team.random`. Concurrency is plain asyncio (`gather`, `TaskGroup`).

        class SolverVerifier(Workflow):
            rounds: int = 2

            async def run(self, task, team):
                draft = await team["solver"].act(task.prompt)
                for _ in range(self.rounds):
                    verdict = await team["verifier"].act(f"{task.prompt}\\n{draft.text}")
                    if verdict.text == "yes":
                        break
                    draft = await team["solver"].act(f"{task.prompt}\\n{verdict.text}")
                return draft.text
    """

    async def run(self, task: Task, team: Team) -> Any:
        """The team's answer to the task (anything but None); at least one agent acts on the way."""
        raise NotImplementedError(f"{type(self).__name__} has no `async def run(self, task, team)`")


class TeamEffects(Protocol):
    """What a team needs of the run that it acts in; `Member` and `Team` say what each effect does."""

    async def act(self, agent: str, observation: Seen, slot: str | None = None) -> Action: ...
    async def act_jointly(self, observations: Mapping[str, Seen], slot: str | None = None) -> dict[str, Action]: ...
    async def call(self, fn: Callable[..., Any], arguments: Sequence[Any], agent: str | None = None) -> Any: ...
    def mark_invalid(self, action: Action, why: str) -> None: ...
    def propose(self, answer: Any) -> None: ...
    def stream(self, name: str | None) -> Random: ...
    def unknown_agent(self, agent: str) -> Exception: ...


class Member:
    """One agent of the team at work."""

    __slots__ = ("_run", "name")

    def __init__(self, run: TeamEffects, name: str) -> None:
        self._run = run
        self.name = name

    def act(self, observation: Seen, slot: str | None = None) -> Coroutine[Any, Any, Action]:
        """Ask the agent for an action: `action = await team["solver"].act("2 + 2 = ?")`.

        Args:
            observation: what it sees; its instructions are put before it by whoever samples.
            slot: a name for this line of work, needed where one agent acts several times at once. Acts in one slot come
                one after the other, and count their turns apart from other slots.
        """
        return self._run.act(self.name, observation, slot)

    def call(self, fn: Callable[..., Any], *args: Any) -> Coroutine[Any, Any, Any]:
        """As `team.call`, counted as this agent's: its tool reward is the share of its calls that did not raise."""
        return self._run.call(fn, args, self.name)


class Team:
    """The team of one run, as its workflow sees it."""

    __slots__ = ("_members", "_run")

    def __init__(self, run: TeamEffects, agents: Sequence[str]) -> None:
        self._run = run
        self._members = {name: Member(run, name) for name in agents}

    @property
    def agents(self) -> tuple[str, ...]:
        """Names of the agents, in the order of the config."""
        return tuple(self._members)

    def __getitem__(self, agent: str) -> Member:
        member = self._members.get(agent)
        if member is None:
            raise self._run.unknown_agent(agent)
        return member

    def act(self, observations: Mapping[str, Seen], slot: str | None = None) -> Coroutine[Any, Any, dict[str, Action]]:
        """A joint move: several agents act at once, none seeing what the others do.

        Args:
            observations: agent -> what it sees.

        Returns:
            agent -> its action.
        """
        return self._run.act_jointly(observations, slot)

    def call(self, fn: Callable[..., Any], *args: Any) -> Coroutine[Any, Any, Any]:
        """Reach the outside world (a tool, a search, a code run), once: a replay takes the result from the journal.

        Args:
            fn: a function of its arguments, not of state that it changes in the workflow: a replay does not run it.
                It may be async. Where calls have a time limit (`marl.rollout.call_seconds`), a plain one runs in a
                thread of its own, and one that takes longer raises TimeoutError.
            args: JSON values or dataclasses; a call with other arguments is another call.

        Returns:
            The result as JSON gives it back (a tuple becomes a list), live as on replay. An exception of `fn` is
            recorded and raised in the same way: its class and `args`, without other attributes.
        """
        return self._run.call(fn, args)

    def invalid(self, action: Action, why: str) -> None:
        """Mark an action that `act` returned as invalid (no number in it, an illegal move): counted per agent, and a
        penalty in some algorithms. `why` is shown with the episode.
        """
        self._run.mark_invalid(action, why)

    def propose(self, answer: Any) -> None:
        """Set what the team would answer if the episode ended now: samplers that branch or search score a state by its
        latest proposal; without one they must run to the end.
        """
        self._run.propose(answer)

    @property
    def random(self) -> Random:
        """Seeded from the run's seed and the task's id. In concurrent tasks use `random_for`: order counts."""
        return self._run.stream(None)

    def random_for(self, name: str) -> Random:
        """A stream of its own for one line of concurrent work; one name, one stream."""
        return self._run.stream(name)
