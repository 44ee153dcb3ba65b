"""The API for workflow authors: `Workflow`, and the team through which it acts."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, ClassVar

from marl_verl.episode.effects import Effects
from marl_verl.episode.messages import Message, Seen, as_observation
from marl_verl.episode.turn import Action, role_of
from marl_verl.errors import MarlError
from marl_verl.extensions import extension
from marl_verl.options import Options
from marl_verl.tasks import Task
from marl_verl.tasks.base import observation as prompt
from marl_verl.threads import call_in_thread


class Conversation:
    """What was said in a conversation with an agent, from `team[agent].conversation()`: each prompt repeats it all, so
    that its turns train as one sequence.

        conversation = team["solver"].conversation(system="Be brief.")
        draft = await conversation.act(task.prompt)
        better = await conversation.act("Check each step.")

    Attributes:
        messages: the conversation so far, in the chat format; the agent's instructions precede it when sampling.
    """

    def __init__(self, act: Callable[..., Awaitable[Action]], system: str | None) -> None:
        self._act = act
        self.messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]

    async def act(self, said: str | Sequence[Mapping[str, Any]], **parameters: Any) -> Action:
        """Say something to the agent, a text or messages such as results of tools, and return its action, which becomes
        the last message. `parameters`: as of `Member.act`."""
        seen = [*self.messages, *as_observation(said)]
        action = await self._act(seen, **parameters)
        self.messages = [*seen, action.message]
        return action


class Workflow(Options):
    """How a team works on a task, as an async function. Annotated attributes are its options in config.

    Between its effects (`act`, `call`, `random`) a workflow must be deterministic: sampling, credit and inspection
    replay it from the journal. Keep state in local variables, use `team.call` for tools and other I/O, and
    `team.random` for random numbers. Concurrency is plain asyncio (`gather`, `TaskGroup`).

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

    replayable: ClassVar[bool] = True
    """Whether a run can be repeated from its journal, as samplers that branch and replay credits need it."""

    async def run(self, task: Task, team: "Team") -> Any:
        """Return the team's answer to the task (not None); at least one agent must act."""
        raise NotImplementedError(f"{type(self).__name__} has no `async def run(self, task, team)`")

    def _begin(self, task: Task, team: "Team") -> Any:
        """What the engine awaits; `ExternalWorkflow` overrides it."""
        return self.run(task, team)


class Single(Workflow):
    """A team of one agent: it sees the task's prompt or messages, and its text is the answer."""

    async def run(self, task: Task, team: "Team") -> str:
        if len(team.agents) != 1:
            raise MarlError(f"workflow 'single' is for one agent, not {', '.join(team.agents)}: set marl.workflow.name")
        action = await team[team.agents[0]].act(prompt(task))
        return action.text


class _Extended:
    """What other distributions add: `team.openai("solver")` calls `openai_client(team, "solver")`, or a class."""

    def __getattr__(self, name: str) -> Any:
        function = None if name.startswith("_") else extension("team", name)
        if function is None:
            raise AttributeError(f"'{type(self).__name__}' has no '{name}', nor does an installed distribution add it")
        return function(self) if isinstance(function, type) else partial(function, self)


class Member(_Extended):
    """One agent of the team of a run. Clients of frameworks use the `effects` and the event `loop` of the run."""

    def __init__(self, effects: Effects, name: str) -> None:
        self.effects, self.name = effects, name
        self.loop = asyncio._get_running_loop()

    def act(self, observation: Seen, slot: str | None = None, **parameters: Any) -> Coroutine[Any, Any, Action]:
        """Request an action of the agent: `action = await team["solver"].act("2 + 2 = ?")`.

        Args:
            observation: what the agent sees; the agent's instructions are prepended when sampling.
            slot: a name, needed if one agent has several concurrent acts. Acts in one slot are sequential, and each
                slot counts its own turns.
            parameters: of the request, in OpenAI's format: `tools`, `tool_choice`, `response_format`, `stop`,
                `max_tokens`, `temperature`, `top_p`. With `tools`, `action.tool_calls` are the calls in the action.
        """
        return self.effects.act(self.name, observation, slot, **parameters)

    def conversation(self, system: str | None = None, slot: str | None = None) -> Conversation:
        """A conversation with the agent, which keeps its messages, first a `system` message, if any, after the agent's
        instructions. `slot`: needed if the agent has several conversations at the same time."""
        return Conversation(partial(self.act, slot=slot), system)

    def call(self, fn: Callable[..., Any], *args: Any) -> Coroutine[Any, Any, Any]:
        """As `team.call`, attributed to this agent: its tool reward is the share of its calls that did not raise."""
        return self.effects.call(fn, args, self.name)


class Team(_Extended):
    """The team of one run, passed to its workflow. `requests`: by (agent, slot) how many so far; ids contain it."""

    name: ClassVar[None] = None

    def __init__(self, effects: Effects, agents: Sequence[str]) -> None:
        self.effects = effects
        self.loop = asyncio._get_running_loop()
        self.requests: dict[tuple[str, str | None], int] = {}
        self._members = {name: Member(effects, name) for name in agents}

    @property
    def agents(self) -> tuple[str, ...]:
        """Names of the agents of the config, in its order."""
        return tuple(name for name in self._members if role_of(name) == name)

    def spawn(self, role: str, instructions: str = "", policy: str | None = None) -> Member:
        """Create an agent for this episode: `worker = team.spawn("worker")`, with name "worker#1", then "worker#2".

        Args:
            role: an agent of the config, whose policy, instructions, sampling options and role reward it has. Groups
                and metrics are those of the role.
            instructions: a system message before everything that it sees, after the instructions of its role.
            policy: the policy that acts for it, one of the config.
        """
        name = self.effects.spawn(role, instructions, policy)
        self._members[name] = Member(self.effects, name)
        return self._members[name]

    def __getitem__(self, agent: str) -> Member:
        member = self._members.get(agent)
        if member is None:
            raise self.effects.unknown_agent(agent)
        return member

    def act(self, observations: Mapping[str, Seen], slot: str | None = None) -> Coroutine[Any, Any, dict[str, Action]]:
        """Request a joint move: several agents act concurrently, without seeing each other's actions. `observations`:
        agent -> observation. Returns agent -> action."""
        return self.effects.act_jointly({self[agent].name: seen for agent, seen in observations.items()}, slot)

    def call(self, fn: Callable[..., Any], *args: Any) -> Coroutine[Any, Any, Any]:
        """Call a function with side effects or I/O (a tool, a search, a code run). A replay uses the recorded result.

        Args:
            fn: must depend only on its arguments and not change state of the workflow, since a replay does not run it.
                It may be async. With a time limit (`marl.rollout.call_seconds`), a synchronous function runs in its
                own thread, and a CallError of kind "TimeoutError" is raised when the limit is reached.
            args: JSON values or dataclasses; a call with other arguments is another call. So is the result, which is
                returned after a JSON round trip (a tuple becomes a list), live and on replay.

        Raises:
            CallError: `fn` raised an exception; it has `kind` ("ValueError") and `message`, live and on replay. `fn`
                must turn anything else that the workflow needs, e.g. a status code, into a result.
            WorkflowError: the result is not a JSON value; the workflow cannot catch this.
        """
        return self.effects.call(fn, args)

    async def in_thread(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Run synchronous code of a framework, in which synchronous clients act. Unlike the function of a `call` it
        is a part of the workflow: a replay runs it again, and it must be deterministic."""
        return await call_in_thread(fn, args)

    def invalid(self, action: Action, why: str) -> None:
        """Mark an action that `act` returned as invalid (no number in it, an illegal move). Invalid actions are counted
        per agent, and some algorithms penalise them. `why` is shown with the episode."""
        self.effects.mark_invalid(action, why)

    def propose(self, answer: Any) -> None:
        """Set the answer that the team would give if the episode ended now. Samplers that branch or search score a
        state by its latest proposal; without one they must roll out to the end."""
        self.effects.propose(answer)

    @property
    def random(self) -> Random:
        """Random numbers, seeded from the run's seed and the task's id. Concurrent tasks must use `random_for`."""
        return self.effects.stream(None)

    def random_for(self, name: str) -> Random:
        """A separate random stream for a concurrent task, seeded by name."""
        return self.effects.stream(name)
