"""A rehearsal of the workflow without a model, and the tasks that are too long for a policy."""

import asyncio
import warnings
from collections.abc import Iterator, Mapping, Sequence

from omegaconf import DictConfig

from marl_verl import plugins
from marl_verl.algo.sampling.context import Candidate, SamplingContext, TaskContext, judged
from marl_verl.config.policy_models import chat_of
from marl_verl.config.resolve import resolve
from marl_verl.episode import Act, Action, Run, Workflow, WorkflowError
from marl_verl.episode.errors import Limits, UnknownAgentError, all_awaited
from marl_verl.episode.messages import as_observation
from marl_verl.errors import MarlError, MarlWarning, format_error, shown, user_error
from marl_verl.models.sources import ModelToMake
from marl_verl.tasks import Split, Task, TaskSet
from marl_verl.tasks.base import observation
from marl_verl.team import TeamConfig
from marl_verl.threads import TimeUp, time_limit, without_breakpoints

SECONDS = 20.0
MESSAGES = ("messages", "input")  # keys of a request that may depend on the actions
TRIED = 8  # tasks of a split that are rehearsed before all are taken for wrong

Moves = tuple[tuple[Act, ...], ...]


class Unjudged(MarlError):
    """The score or a role reward refuses a task with a MarlError."""


class Rehearsal(SamplingContext):
    """A context in which every action is empty."""

    async def act(self, act: Act, session: int, candidate: Candidate = 0, agent: str | None = None) -> Action:
        return Action(text="")

    def seed(self, session: int) -> int:
        return 0

    async def judge(self, run: Run) -> None:
        """Score the end of a run, and its turns. A MarlWarning if code of users raises: it may need real actions."""
        try:
            await self.finish(run, 0)
        except MarlError as error:
            raise Unjudged(f"{error} (with empty actions)") from error
        except Exception as error:  # noqa: BLE001 - code of users
            problem = f"the score or a role reward raised {format_error(error)} for empty actions"
            warnings.warn(MarlWarning(f"{problem}: such an attempt fails in a run"), stacklevel=2)


@without_breakpoints()
def rehearse_split(
    workflow: Workflow, tasks: Sequence[Task], team: TeamConfig, task_set: TaskSet, parts: tuple[str, ...] = ()
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
        raise MarlError(f"{problem}. Check how they are scored, and their data: {shown(references[0][0].data, 300)}")
    return moves


def rehearse(
    workflow: Workflow, task: Task, team: TeamConfig, task_set: TaskSet | None = None, parts: tuple[str, ...] = ()
) -> Moves:
    """Run the workflow once with empty actions and return the acts of each move. With a task set, try score and role
    rewards on its end.

    MarlError for an error that does not depend on the actions, such as a client's request that is refused, and
    `Unjudged`. A workflow of external processes is not rehearsed.
    """
    if not workflow.replayable:
        return ()
    names, limits = {agent.reward for agent in team.agents.values() if agent.reward}, Limits(call_seconds=SECONDS / 2)
    rewards = {name: plugins.load().get("rewards", name) for name in names}
    task_context = TaskContext(workflow, task_set or TaskSet(), team.agents, rewards, limits=limits, parts=parts)
    context = Rehearsal(task_context, task, task.id)
    moves: list[tuple[Act, ...]] = []
    run = context.start(0)

    async def play() -> None:
        async with run:
            while (acts := await run.next()) is not None:
                moves.append(tuple(acts))
                for act in acts:
                    run.resolve(act, await context.act(act, 0))
            if isinstance(run.answer, Action):
                raise MarlError(f"{context.label} answers with an Action, which cannot be scored: return action.text")
            if task_set is not None:
                await context.judge(run)

    try:
        # an endless loop would block `wait_for`
        with all_awaited(context.label), without_breakpoints(), time_limit(2 * SECONDS):
            asyncio.run(asyncio.wait_for(play(), timeout=SECONDS))
    except WorkflowError as error:
        for why in (why for key, why in run.refused.items() if key not in MESSAGES):
            raise MarlError(f"{context.label}: a request of its client is refused: {why}") from error
        # a workflow may reject empty actions; in training such an episode counts as a failed attempt
        if not moves or isinstance(error, UnknownAgentError):
            raise
    except (TimeUp, TimeoutError) as error:
        if not moves or isinstance(error, TimeUp):
            seconds = 2 * SECONDS if isinstance(error, TimeUp) else SECONDS
            problem = f"{context.label} ran {seconds:.0f} s without an effect{error}"
            raise MarlError(f"{problem}; it may not terminate") from error
    return tuple(moves)


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
