"""A rehearsal of the workflow without a model, and the tasks that are too long for a policy."""

import asyncio
import contextlib
import functools
import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from marl_verl import plugins
from marl_verl.algo.algorithms import Algorithm
from marl_verl.algo.credit import ReplayCredit, assigned
from marl_verl.algo.sampling import AttemptFailed
from marl_verl.algo.sampling.context import Candidate, SamplingContext, TaskContext, judged
from marl_verl.config.policy_models import chat_of
from marl_verl.config.resolve import resolve
from marl_verl.episode import Act, Action, Run, Workflow, WorkflowError
from marl_verl.episode.errors import Limits, UnknownAgentError, all_awaited
from marl_verl.episode.journal import CallError
from marl_verl.episode.messages import as_observation
from marl_verl.errors import MarlError, MarlWarning, after_notes, format_error, raised_at, shown, user_error
from marl_verl.models.sources import ModelToMake
from marl_verl.tasks import Split, Task, TaskSet
from marl_verl.tasks.base import observation
from marl_verl.team import TeamConfig
from marl_verl.threads import TimeUp, time_limit, without_breakpoints

SECONDS = 20.0
MESSAGES = ("messages", "input")  # keys of a request that may depend on the actions
TRIED = 8  # tasks of a split that are rehearsed before all are taken for wrong
NO_ATTRIBUTE = re.compile(r"^module '|'(Action|Agent|Episode|Task|Team|Turn)' object has no attribute")

Moves = tuple[tuple[Act, ...], ...]


class Unjudged(MarlError):
    """The score or a role reward refuses a task with a MarlError."""


def is_bug(error: BaseException | None) -> bool:
    """Whether an error of code of users does not depend on actions: an unknown name or module, or attribute of an
    object of marl-verl. A name may be one that a program in an action defines: its file is `<string>`."""
    while isinstance(error, WorkflowError | CallError | BaseExceptionGroup):
        error = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__
    if isinstance(error, AttributeError):
        return NO_ATTRIBUTE.search(str(error)) is not None
    if not isinstance(error, NameError | ImportError) or isinstance(error, UnboundLocalError):
        return False
    return "(<string>" not in raised_at(error)


@functools.cache
def _warn(problem: str) -> None:
    """Warn once: the splits have the same faults."""
    warnings.warn(MarlWarning(f"{problem}: such an attempt fails in a run"), stacklevel=2)


class Rehearsal(SamplingContext):
    """A context in which every action is empty."""

    async def act(self, act: Act, session: int, candidate: Candidate = 0, agent: str | None = None) -> Action:
        return Action(text="")

    def seed(self, session: int) -> int:
        return 0

    async def judge(self, run: Run, credits: Iterable[ReplayCredit]) -> None:
        """Score the end of a run and its turns, and credit them. If code of users raises, which may need real actions:
        a MarlWarning; MarlError where `is_bug`."""
        try:
            episode = await self.finish(run, 0)
            for credit in credits:
                await assigned(credit, self, episode)
        except (AttemptFailed, WorkflowError):  # a replay of a credit: the workflow may reject such actions
            pass
        except MarlError as error:
            raise Unjudged(f"{after_notes(error, str(error))} (with empty actions)") from error
        except Exception as error:
            problem = after_notes(error, format_error(error)) + raised_at(error)
            if is_bug(error):
                raise MarlError(f"{self.label}, scoring: {problem}") from error
            _warn(f"scoring, in a rehearsal: {problem}")


@without_breakpoints()
def rehearse_split(
    workflow: Workflow, tasks: Sequence[Task], team: TeamConfig, task_set: TaskSet, algorithm: Algorithm | None = None
) -> Moves:
    """`rehearse` the first of `TRIED` tasks that can be judged, and judge reference answers of these tasks.

    MarlError if no task can be judged, or if there are references and none of them is right: every attempt would fail.
    """
    tried, refused = tasks[:TRIED], list[Unjudged]()
    for task in tried:
        try:
            moves = rehearse(workflow, task, team, task_set, algorithm)
            break
        except Unjudged as error:
            refused.append(error)
    else:
        raise MarlError(f"none of the first {len(tried)} tasks can be judged: {refused[0]}") from refused[0]
    references = [(task, answer) for task in tried if (answer := task_set.reference(task)) is not None]
    if references and not any(asyncio.run(judged(task_set, *pair))[1] for pair in references):
        problem = f"none of the reference solutions of the first tasks is right, e.g. of '{references[0][0].id}'"
        raise MarlError(f"{problem}. Check how they are scored, and their data: {shown(references[0][0].data, 300)}")
    return moves


def rehearse(
    workflow: Workflow,
    task: Task,
    team: TeamConfig,
    task_set: TaskSet | None = None,
    algorithm: Algorithm | None = None,
) -> Moves:
    """Run the workflow with empty actions and return the acts of each move. With a task set, try score, role rewards
    and credits on its end.

    MarlError for an error that does not depend on the actions, such as a client's request that is refused, and
    `Unjudged`. A workflow of external processes is not rehearsed.
    """
    if not workflow.replayable:
        return ()
    names, limits = {agent.reward for agent in team.agents.values() if agent.reward}, Limits(call_seconds=SECONDS / 2)
    rewards = {name: plugins.load().get("rewards", name) for name in names}
    chosen = algorithm or Algorithm()
    parts = chosen.advantage.score_parts()
    task_context = TaskContext(workflow, task_set or TaskSet(), team.agents, rewards, limits=limits, parts=parts)
    context = Rehearsal(task_context, task, task.id)
    _check_signatures(task_context)
    moves: list[tuple[Act, ...]] = []
    run, code = context.start(0), getattr(inspect.unwrap(type(workflow).run), "__code__", None)
    place = f" ({Path(code.co_filename).name}, line {code.co_firstlineno})" if code else ""

    async def play() -> None:
        async with run:
            while (acts := await run.next()) is not None:
                moves.append(tuple(acts))
                for act in acts:
                    run.resolve(act, await context.act(act, 0))
            if isinstance(run.answer, Action):
                problem = "answers with an Action, which cannot be scored: return action.text"
                raise MarlError(f"{context.label} {problem}{place}")
            if task_set is not None:
                await context.judge(run, chosen.replay_credits)

    try:
        # an endless loop would block `wait_for`
        with all_awaited(context.label), without_breakpoints(), time_limit(2 * SECONDS):
            asyncio.run(asyncio.wait_for(play(), timeout=SECONDS))
    except WorkflowError as error:
        for why in (why for key, why in run.refused.items() if key not in MESSAGES):
            raise MarlError(f"{context.label}: a request of its client is refused: {why}") from error
        # a workflow may reject such actions; in training such an episode counts as a failed attempt
        if not moves or isinstance(error, UnknownAgentError):
            raise
        if is_bug(error):
            raise MarlError(str(error)) from error
        if error.__cause__ is None or isinstance(error.__cause__, TypeError):  # None: no `return`, or no answer found
            _warn(f"in a rehearsal, {error}{place if error.__cause__ is None else ''}")
    except (TimeUp, TimeoutError) as error:
        if not moves or isinstance(error, TimeUp):
            seconds = 2 * SECONDS if isinstance(error, TimeUp) else SECONDS
            problem = f"{context.label} ran {seconds:.0f} s without an effect{error}"
            raise MarlError(f"{problem}; it may not terminate") from error
    return tuple(moves)


def _check_signatures(task_context: TaskContext) -> None:
    """MarlError where a score or a role reward cannot be called."""
    functions: dict[str, tuple[Callable[..., Any], int]] = {"score": (task_context.tasks.score, 2)}
    for agent in task_context.agents.values():
        if agent.reward:
            functions[f"role reward '{agent.reward}' of agent '{agent.name}'"] = task_context.rewards[agent.reward], 3
    for label, (function, count) in functions.items():
        with user_error(label, TypeError), contextlib.suppress(ValueError):  # ValueError: it has no signature
            inspect.signature(function).bind(*range(count))


def drop_overlong(
    config: DictConfig, team: TeamConfig, tasks: dict[Split, list[Task]], made: Mapping[str, ModelToMake]
) -> Iterator[str]:
    """Remove tasks from `tasks` that are too long for one of the agents, with its instructions; yield a note.

    A workflow may show an agent more than the task: that is not known before a run.
    """
    if not config.data.filter_overlong_prompts:
        return
    resolved, limits, chats = resolve(config, team), {}, {}
    for name, policy in team.policies.items():
        if not policy.external:
            path = resolved.policies[name].actor_rollout_ref.model.path
            with user_error(f"policy '{name}': model '{path}' cannot be loaded, give a local folder", OSError):
                chats[name] = chat_of(name, resolved.policies[name], made)
            limits[name] = int(resolved.policies[name].actor_rollout_ref.rollout.prompt_length)
    agents = [agent for agent in team.agents.values() if agent.policy in chats]

    def fits(task: Task) -> bool:
        seen = as_observation(observation(task))
        return all(
            len(chats[agent.policy].render(agent.conversation(seen), tokenize=True)) <= limits[agent.policy]
            for agent in agents
        )

    for split, loaded in tasks.items():
        tasks[split] = [task for task in loaded if fits(task)]
        dropped = len(loaded) - len(tasks[split])
        why = "longer than data.max_prompt_length"
        yield f"{dropped} of {len(loaded)} {split} tasks dropped: their prompt is {why} (data.filter_overlong_prompts)"
