"""The effects of a workflow: acts, calls and random numbers."""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from marl_verl.episode.codec import shared_messages
from marl_verl.episode.errors import (
    Limits,
    ReplayMismatch,
    TokenBudgetExceeded,
    UnknownAgentError,
    WorkflowError,
    short,
)
from marl_verl.episode.journal import (
    ActRecord,
    CallError,
    CallKey,
    CallRecord,
    Journal,
    Raised,
    Record,
    as_json,
    function_name,
)
from marl_verl.episode.lanes import numbers
from marl_verl.episode.messages import Observation, Parameters, Seen, as_observation, as_parameters
from marl_verl.episode.turn import Act, Action, slot_name
from marl_verl.errors import MarlError, nearest
from marl_verl.tasks import Task
from marl_verl.threads import perform

FUNCTION = f"{__name__}:check_length"
NOT_REPLAYABLE = "cannot be replayed: its agents are processes that run by themselves"
TooLong = Callable[[Act], str | None]  # why an act is too long for the policy of its agent, or None


class ContextLengthExceeded(Exception):
    """A request of a client is too long for the policy of its agent."""


@dataclass(slots=True, eq=False)
class Wait:
    """A pending act: its position among the records and the future that the workflow's task awaits."""

    act: Act
    position: int
    future: asyncio.Future[Action]


class Effects:
    """The state of one run and the effects behind its `Team`; base of `engine.Run`, which documents the arguments.
    Marks (`mark_invalid`, `propose`) are not recorded: a replay sets them again."""

    def __init__(
        self,
        workflow: Any,
        task: Task,
        agents: Sequence[str],
        journal: Journal | None = None,
        seed: int = 0,
        *,
        sealed: bool = False,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        too_long: TooLong | None = None,
    ) -> None:
        self.workflow, self.task, self.agents = workflow, task, tuple(agents)
        self._given = Journal(seed=seed) if journal is None else journal
        if self._given.records and not workflow.replayable:
            raise MarlError(f"workflow '{type(workflow).__name__}' {NOT_REPLAYABLE}")
        self._sealed, self.limits, self._too_long = sealed, limits, too_long
        self._records: list[Record | None] = []  # None: reached, not yet resolved
        self.lanes: dict[tuple[str, str | None], int] = {}  # (agent, slot name) -> acts in it so far
        self._calls: dict[CallKey, int] = {}  # calls so far
        self._calling = 0  # calls in progress
        self._stood = -1  # value of `_news` when the run was last blocked
        self._news = 0  # incremented by every event that can advance the run or change what it waits for
        self._arrived = False  # whether an action or a live call's result arrived since the records were last sorted
        self._streams: dict[str | None, Random] = {}
        self._seen: dict[str, Observation] = {}  # agent -> its latest observation
        self._former: dict[tuple[str, str | None], Action] = {}  # lane -> the action of its latest act
        self._spawned: dict[str, tuple[Observation, Parameters]] = {}  # agent -> its instructions and its policy
        self._spawning: dict[tuple[str, tuple[int, ...]], tuple[int, asyncio.Task[Any] | None]] = {}
        self._waiting: dict[tuple[str, str], Wait] = {}
        self._moves: list[list[Wait]] = []  # reached, not yet returned by `next`
        self._given_up: set[tuple[str, str]] = set()  # acts that the workflow cancelled
        self.invalid: dict[tuple[str, str], str] = {}  # act -> why its action was invalid
        self.refused: dict[str, str] = {}  # key of a client's request -> why it was refused (the last one)
        self.proposals: list[Any] = []  # answers proposed so far; the last one is the current answer
        self.tokens = 0  # sampled in this run by all agents, including recorded actions
        self._counts: Counter[str] = Counter()  # effects so far, by kind
        self._last: Act | CallRecord | None = None
        self._root: asyncio.Task[Any] | None = None
        self._others: set[asyncio.Task[Any]] = set()  # tasks created by the workflow that had an effect
        self._driver: asyncio.Future[None] | None = None
        self._concurrent = False  # whether an effect came from a task other than the root
        self._fatal: WorkflowError | None = None  # kept here so that the workflow cannot suppress it with `except`
        self._closed = self.finished = False
        self._answer: Any = None

    @property
    def turns(self) -> list[ActRecord]:
        """Acts with their actions, in index order (final when the run has finished)."""
        return [record for record in self._records if isinstance(record, ActRecord)]

    async def act(self, agent: str, observation: Seen, slot: str | None = None, **parameters: Any) -> Action:
        self._enter()
        (action,) = await self._resolved([self._reach(agent, observation, slot, None, parameters)])
        return action

    async def act_jointly(self, observations: Mapping[str, Seen], slot: str | None = None) -> dict[str, Action]:
        self._enter()
        joint = self._counts["joint moves"]
        self._counts["joint moves"] += 1
        acts = [self._reach(agent, seen, slot, joint, {}) for agent, seen in observations.items()]
        return dict(zip(observations, await self._resolved(acts), strict=True))

    def spawn(self, role: str, instructions: str, policy: str | None) -> str:
        """The name of a new agent. Nothing is recorded: the name follows from the structure of the workflow, ROLE#n for
        the n-th of its role, and ROLE#2.n for the n-th that the second of several parallel tasks creates."""
        self._enter()
        if role not in self.agents:
            raise self.unknown_agent(role)
        if not self._sealed:
            self._count("spawned agents (marl.rollout.episode_agents)", self.limits.spawned)
        task, place = asyncio.current_task(), numbers()
        count, last = self._spawning.get((role, place), (0, None))
        if last is not None and last is not task and not last.done():
            remedy = "Spawn them before the tasks are created, or create the tasks together (asyncio.gather)."
            raise self._fail(f"agents of role '{role}' are spawned by tasks whose order depends on arrivals. {remedy}")
        self._spawning[role, place] = count + 1, task
        name = f"{role}#{'.'.join(map(str, (*place, count + 1)))}"
        system = as_observation([{"role": "system", "content": instructions}]) if instructions else ()
        self._spawned[name] = system, {} if policy is None else {"policy": policy}
        return name

    def check_length(self, agent: str, observation: Observation, parameters: Parameters) -> None:
        """Raise ContextLengthExceeded for a request that is too long for the agent's policy, recorded as a call of
        the team, which is found by agent and content of the request: a replay refuses the same requests, also where no
        policy is present. A request that the policy's chat template refuses ends the run."""
        text = json.dumps([observation, parameters.get("tools")], sort_keys=True)
        content = as_json([agent, hashlib.blake2b(text.encode(), digest_size=8).hexdigest()])
        record = self._given.call(FUNCTION, content, 0)
        if record is None and self._too_long is not None:
            system, policy = self._spawned.get(agent, ((), {}))
            try:
                why = self._too_long(Act(agent, "", 0, 0, (*system, *observation), None, {**policy, **parameters}))
            except MarlError as error:  # of the chat template
                raise self._fail(str(error)) from error
            if why is not None:
                record = CallRecord(FUNCTION, content, raised=Raised.of(ContextLengthExceeded(why)))
        if record is None or record.raised is None:
            return
        self._enter()
        self._count("calls", self.limits.calls)
        self._last = record
        self._records.append(record)
        self._arrived = True
        raise ContextLengthExceeded(record.raised.message)

    def _count(self, kind: str, limit: int) -> None:
        if self._counts[kind] >= limit:
            raise self._fail(f"exceeded {limit} {kind}; the workflow may not terminate")
        self._counts[kind] += 1

    async def call(self, fn: Callable[..., Any], arguments: Sequence[Any], agent: str | None = None) -> Any:
        self._enter()
        function, text = function_name(fn), as_json(list(arguments))
        asked = CallRecord(function, text, agent=agent)
        self._count("calls", self.limits.calls)
        self._last = asked
        number = self._calls.get((agent, function, text), 0)
        self._calls[agent, function, text] = number + 1
        record = self._given.call(function, text, number, agent)
        position, cause = len(self._records), None
        self._records.append(record)
        if record is None:
            if self._sealed:
                raise self._fail(f"{short(str(asked))} is not in the journal", ReplayMismatch)
            self._calling += 1
            try:
                record, cause = await self._called(fn, arguments, asked)
            finally:
                self._calling -= 1
                self._news += 1
                self._arrived = True
                self._wake()
            self._records[position] = record
        try:
            return record.result()
        except CallError as error:
            raise error from cause

    async def _called(
        self, fn: Callable[..., Any], arguments: Sequence[Any], asked: CallRecord
    ) -> tuple[CallRecord, Exception | None]:
        """`asked` with the result of `fn` or its exception, and the exception."""
        try:
            value = await perform(fn, arguments, self.limits.call_seconds)
        except Exception as error:  # noqa: BLE001 - recorded, and raised in the workflow
            return replace(asked, raised=Raised.of(error)), error
        try:
            return replace(asked, value=as_json(value)), None
        except Exception as error:
            raise self._fail(f"call {asked.function} must return a JSON value: {error}") from error

    def mark_invalid(self, action: Action, why: str) -> None:
        for act, recorded in reversed(self.turns):
            if recorded is action:
                self.invalid[act.key] = str(why)
                return
        raise self._fail("team.invalid takes an action that `act` returned in this run")

    def propose(self, answer: Any) -> None:
        self._check_over()
        self.proposals.append(answer)

    def stream(self, name: str | None) -> Random:
        self._check_over()
        if name is None and asyncio.current_task() is not self._root:
            instead = 'use team.random_for("a name")'
            raise self._fail(f"team.random is not deterministic in a concurrent task: {instead}")
        if name not in self._streams:
            self._streams[name] = Random(repr((self._given.seed, self.task.id, name)))
        return self._streams[name]

    def unknown_agent(self, agent: str) -> WorkflowError:
        self._check_over()
        return self._fail(f"the team has no agent '{agent}': {nearest(str(agent), self.agents)}", UnknownAgentError)

    @property
    def _over(self) -> bool:
        return self._closed or self._fatal is not None

    def _check_over(self) -> None:
        """CancelledError in a task that continues after the run has ended; `except Exception` lets it through."""
        if self._over:
            raise asyncio.CancelledError

    def _enter(self) -> None:
        """Run at the start of every effect: count the event and remember tasks other than the root."""
        self._check_over()
        self._news += 1
        task = asyncio.current_task()
        if task is not self._root and task is not None:
            self._concurrent = True
            if task not in self._others:
                self._others.add(task)
                task.add_done_callback(self._others.discard)

    async def _resolved(self, acts: list[Action | Wait]) -> list[Action]:
        """The actions of a move, when every act has one. Cancellation means that the workflow dropped these acts."""
        if waits := [act for act in acts if isinstance(act, Wait)]:
            self._moves.append(waits)
            self._wake()
        try:
            for wait in waits:
                await wait.future
        except asyncio.CancelledError:
            for wait in waits:
                if self._records[wait.position] is None:
                    self._news += 1
                    self._given_up.add(wait.act.key)
                    self._waiting.pop(wait.act.key, None)
                    wait.future.cancel()
                    if self.lanes[wait.act.lane] == wait.act.turn + 1:  # no turn: the next act takes its place
                        self.lanes[wait.act.lane] -= 1
            raise
        return [act.future.result() if isinstance(act, Wait) else act for act in acts]

    def _reach(self, agent: str, seen: Seen, name: str | None, joint: int | None, request: Parameters) -> Action | Wait:
        """The recorded action of the next act in a lane, or a `Wait` for it."""
        try:
            system, policy = self._spawned.get(agent, ((), {}))
            observation = (*system, *as_observation(seen))
            asked = {**policy, **(as_parameters(request) or {})} or None
        except (TypeError, ValueError) as error:
            raise self._fail(f"invalid observation for agent '{agent}': {error}") from error
        if name is not None and (not name or name.isdigit() or "#" in name):
            raise self._fail(f"a slot name must be non-empty, without '#', and not a number; got {name!r}")
        self._count("acts", self.limits.acts)
        turn = self.lanes.get((agent, name), 0)
        if turn and (agent, slot_name(name, turn - 1)) in self._waiting:
            where = "without naming the slots" if name is None else f"in slot '{name}'"
            remedy = 'give each its own act(..., slot="name")'
            raise self._fail(f"agent '{agent}' acts twice concurrently {where}: {remedy}")
        slot, former, action = slot_name(name, turn), self._former.get((agent, name)), None
        record = self._given.act(agent, slot)
        if record is not None and record.act.seen == (observation, asked):
            observation, action = record.act.observation, record.action
        else:
            same = shared_messages(earlier := self._seen.get(agent, ()), observation)
            observation = (*earlier[:same], *observation[same:])
        self._seen[agent] = observation  # the recorded or earlier objects, where equal: less memory
        self._last = act = Act(agent, slot, turn, self._counts["acts"] - 1, observation, joint, asked, former)
        self.lanes[agent, name] = turn + 1
        if action is not None:
            self._records.append(None)
            self._answered(len(self._records) - 1, act, action)
            return action
        if (most := self.limits.tokens) is not None and self.tokens >= most:
            message = f"{self.tokens} tokens are sampled; the limit of an episode is {most}"
            raise self._fail(message, TokenBudgetExceeded)
        wait = Wait(act, len(self._records), asyncio.get_running_loop().create_future())
        self._records.append(None)
        self._waiting[act.key] = wait
        return wait

    def _answered(self, position: int, act: Act, action: Action) -> None:
        self._records[position] = ActRecord(act, action)
        self._former[act.lane] = action
        self.tokens += action.length
        if action.malformed is not None:
            self.invalid[act.key] = action.malformed

    def _fail(self, message: str, kind: type[WorkflowError] = WorkflowError) -> WorkflowError:
        """Return an error that ends the run even if the workflow catches it."""
        after = "before any act" if self._last is None else f"at {short(str(self._last))}"
        error = kind(f"workflow '{type(self.workflow).__name__}' on task '{self.task.id}', {after}: {message}")
        if self._fatal is None:
            self._fatal = error
            self._wake()
        return error

    def _wake(self) -> None:
        if self._driver is not None and not self._driver.done():
            self._driver.set_result(None)
