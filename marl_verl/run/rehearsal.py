"""A rehearsal of the workflow without a model, and the tasks that are too long for a policy."""

import asyncio
import warnings
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from typing import TypeVar

from omegaconf import DictConfig

from marl_verl import plugins
from marl_verl.algo.sampling.context import finite, judged, score_parts
from marl_verl.algo.sampling.scoring import scored
from marl_verl.config.policy_models import chat_of
from marl_verl.config.resolve import resolve
from marl_verl.episode import Act, Action, Episode, Run, Turn, Workflow, WorkflowError
from marl_verl.episode.calls import breakpoints
from marl_verl.episode.errors import UnknownAgentError
from marl_verl.episode.messages import as_observation
from marl_verl.errors import MarlError, MarlWarning, format_error
from marl_verl.models.sources import ModelToMake
from marl_verl.tasks.base import TaskSet
from marl_verl.tasks.task import Split, Task
from marl_verl.tasks.verl_rows import observation
from marl_verl.team import TeamConfig, acting
from marl_verl.threads import TimeUp, time_limit

MOVES, SECONDS = 1000, 20.0
MESSAGES = ("messages", "input")  # keys of a request that may depend on the actions
TRIED = 8  # tasks of a split that are rehearsed before all are taken for wrong
T = TypeVar("T")

Moves = tuple[tuple[Act, ...], ...]


class Unjudged(MarlError):
    """The score or a role reward refuses a task with a MarlError."""


@breakpoints(None)
def rehearse_split(
    workflow: Workflow, tasks: Sequence[Task], team: TeamConfig, task_set: TaskSet, parts: Sequence[str] = ()
) -> Moves:
    """`rehearse` the first of `TRIED` tasks that can be judged, and judge reference answers of these tasks.

    MarlError if no task can be judged, or if there are references and none of them is right: every attempt would fail.
    """
    tried, refused = tasks[:TRIED], list[Unjudged]()
    for task in tried:
        try:
            moves = rehearse(workflow, task, team, task_set, parts)
            break
        except Unjudged as error:
            refused.append(error)
    else:
        raise MarlError(f"none of the first {len(tried)} tasks can be judged: {refused[0]}") from refused[0]
    references = [(task, answer) for task in tried if (answer := task_set.reference(task)) is not None]
    if references and not any(asyncio.run(judged(task_set, *pair))[1] for pair in references):
        problem = f"none of the reference solutions of the first tasks is right, e.g. of '{references[0][0].id}'"
        raise MarlError(f"{problem}: no attempt could be. Check the tasks' data, and how the task set scores them.")
    return moves


def rehearse(
    workflow: Workflow, task: Task, team: TeamConfig, task_set: TaskSet | None = None, parts: Sequence[str] = ()
) -> Moves:
    """Run the workflow once with empty actions and return the acts of each move. With a task set, try score and role
    rewards on its end.

    MarlError for an error that does not depend on the actions, such as a client's request that is refused, for a score
    that lacks `parts`, and for a score or role reward that is no number; a MarlWarning for one that raises. A workflow
    of external processes is not rehearsed.
    """
    if not workflow.replayable:
        return ()
    moves: list[tuple[Act, ...]] = []
    refused: dict[str, str] = {}

    async def play() -> None:
        nonlocal refused
        async with Run(workflow, task, list(team.agents), seed=0) as run:
            refused = run.refused
            for _ in range(MOVES):
                acts = await run.next()
                if acts is None:
                    if isinstance(run.answer, Action):
                        problem = f"workflow '{team.workflow.name}' answers with an Action, which cannot be scored"
                        raise MarlError(f"{problem}: return action.text")
                    if task_set is not None:
                        verdict = await _tried(judged(task_set, task, run.answer, SECONDS / 2), "the score")
                        if verdict is not None:
                            score_parts(verdict[0], parts)
                        await _try_rewards(run, task, team)
                    return
                moves.append(tuple(acts))
                for act in acts:
                    run.resolve(act, Action(text=""))

    try:
        with breakpoints(None), time_limit(2 * SECONDS):  # an endless loop would block `wait_for`
            asyncio.run(asyncio.wait_for(play(), timeout=SECONDS))
    except WorkflowError as error:
        for why in (why for key, why in refused.items() if key not in MESSAGES):
            problem = f"workflow '{team.workflow.name}' on task '{task.id}': a request of its client is refused"
            raise MarlError(f"{problem}: {why}") from error
        # a workflow may reject empty actions; in training such an episode counts as a failed attempt
        if not moves or isinstance(error, UnknownAgentError):
            raise
    except (TimeUp, TimeoutError) as error:
        if not moves or isinstance(error, TimeUp):
            problem = (
                f"workflow '{team.workflow.name}' on task '{task.id}' ran {SECONDS:.0f} s without an effect{error}"
            )
            raise MarlError(f"{problem}; it may not terminate") from error
    return tuple(moves)


async def _try_rewards(run: Run, task: Task, team: TeamConfig) -> None:
    turns = [Turn(act, action, task.id, 0, acting(team.agents, act).policy) for act, action in run.turns]
    episode = Episode(task.id, 0, task, turns, run.answer, False, run.journal, finished=True)
    for turn in turns:
        if (name := team.agents[turn.role].reward) is None:
            continue
        label, fn = f"role reward '{name}' of agent '{turn.agent}'", plugins.load().get("rewards", name)
        values = await _tried(scored(fn, [(task, turn, episode)], SECONDS / 2), label)
        if values is not None:
            finite(values[0], label, getattr(fn, "__qualname__", fn))


async def _tried(work: Awaitable[T], label: str) -> T | None:
    """The result of code of users, which may need real actions; None, with a MarlWarning, if it raises."""
    try:
        return await work
    except MarlError as error:
        raise Unjudged(f"{label}: {format_error(error)}") from error
    except Exception as error:  # noqa: BLE001 - code of users
        problem = f"{label} raised {format_error(error)} for an empty action"
        warnings.warn(MarlWarning(f"{problem}: such an attempt fails in a run"), stacklevel=2)
        return None


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
