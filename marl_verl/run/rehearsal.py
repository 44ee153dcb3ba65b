"""A rehearsal of the workflow without a model, and checks of what its agents would request: parameters and lengths."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from omegaconf import DictConfig

from marl_verl.algo.sampling.context import RoleReward, finite, judged
from marl_verl.algo.sampling.scoring import scored
from marl_verl.config.policy_models import chat_of
from marl_verl.config.resolve import resolve
from marl_verl.episode import Act, Action, Episode, Run, Turn, Workflow, WorkflowError
from marl_verl.episode.calls import breakpoints, is_async
from marl_verl.episode.errors import UnknownAgentError
from marl_verl.episode.messages import as_observation, message_text, untrained_sampling
from marl_verl.errors import MarlError, MarlWarning, check, format_error
from marl_verl.models.chat import Chat
from marl_verl.models.sources import ModelToMake
from marl_verl.tasks.base import TaskSet, is_quick
from marl_verl.tasks.task import Split, Task
from marl_verl.tasks.verl_rows import observation
from marl_verl.team import TeamConfig
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
    workflow: Workflow, tasks: Sequence[Task], team: TeamConfig, rewards: Mapping[str, RoleReward], task_set: TaskSet
) -> Moves:
    """`rehearse` the first of `TRIED` tasks that can be judged, and judge reference answers of these tasks.

    MarlError if no task can be judged, or if there are references and none of them is right: every attempt would fail.
    """
    tried, moves, refused = tasks[:TRIED], None, list[Unjudged]()
    for task in tried:
        try:
            moves = rehearse(workflow, task, team, rewards, task_set)
            break
        except Unjudged as error:
            refused.append(error)
    if moves is None:
        raise MarlError(f"none of the first {len(tried)} tasks can be judged: {refused[0]}") from refused[0]
    references = [(task, answer) for task in tried if (answer := task_set.reference(task)) is not None]
    if references and not any(asyncio.run(judged(task_set, *pair))[1] for pair in references):
        problem = f"none of the reference solutions of the first tasks is right, e.g. of '{references[0][0].id}'"
        raise MarlError(f"{problem}: no attempt could be. Check how the task set reads and runs their tests.")
    return moves


def rehearse(
    workflow: Workflow,
    task: Task,
    team: TeamConfig,
    rewards: Mapping[str, RoleReward] | None = None,
    task_set: TaskSet | None = None,
) -> Moves:
    """Run the workflow once with empty actions and return the acts of each move; try score and role rewards on its end.

    MarlError for an error that does not depend on the actions, such as a client's request that is refused, and for a
    role reward that is no number; a MarlWarning for one that raises. A workflow of external processes is not rehearsed.
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
                    if task_set is not None and (is_quick(task_set.score) or is_async(task_set.score)):
                        await _tried(judged(task_set, task, run.answer, SECONDS / 2), "the score")
                    return await _try_rewards(run, task, team, rewards or {})
                moves.append(tuple(acts))
                for act in acts:
                    run.resolve(act, Action(text=""))

    try:
        with breakpoints(None), time_limit(2 * SECONDS):  # an endless loop would block `wait_for`
            asyncio.run(asyncio.wait_for(play(), timeout=SECONDS))
    except TimeUp as up:
        problem = f"workflow '{team.workflow.name}' on task '{task.id}' ran {2 * SECONDS:.0f} s without an effect{up}"
        raise MarlError(f"{problem}; it may not terminate") from up
    except WorkflowError as error:
        for why in (why for key, why in refused.items() if key not in MESSAGES):
            problem = f"workflow '{team.workflow.name}' on task '{task.id}': a request of its client is refused"
            raise MarlError(f"{problem}: {why}") from error
        # a workflow may reject empty actions; in training such an episode counts as a failed attempt
        if not moves or isinstance(error, UnknownAgentError):
            raise
    except TimeoutError as error:
        if not moves:
            problem = f"workflow '{team.workflow.name}' did not request an act within {SECONDS:.0f} s"
            raise MarlError(f"{problem} on task '{task.id}'") from error
    return tuple(moves)


async def _try_rewards(run: Run, task: Task, team: TeamConfig, rewards: Mapping[str, RoleReward]) -> None:
    """Call the role rewards on the turns of a rehearsal."""
    turns = [Turn(act, action, task.id, 0, team.agents[act.agent].policy) for act, action in run.turns]
    episode = Episode(task.id, 0, task, turns, run.answer, False, run.journal, finished=True)
    for turn in turns:
        name = team.agents[turn.agent].reward
        if name is None or name not in rewards:
            continue
        label = f"role reward '{name}' of agent '{turn.agent}'"
        fn = rewards[name]
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


def check_requests(resolved: DictConfig, team: TeamConfig, acts: Sequence[Act]) -> None:
    """MarlError for an act that sets other sampling parameters than those at which its policy is trained."""
    for act in acts:
        agent = team.agents[act.agent]
        if act.parameters is None or not team.policies[agent.policy].trained:
            continue
        rollout = resolved.policies[agent.policy].actor_rollout_ref.rollout
        trained_at = {name: rollout[name] for name in ("temperature", "top_p")}
        trained_at |= {name: value for name in trained_at if (value := getattr(agent.sampling, name)) is not None}
        why = untrained_sampling(act.parameters, trained_at, f"policy '{agent.policy}'", agent.policy)
        if why is not None:
            raise MarlError(f"agent '{agent.name}': {why}")


@check
def check_prompts(
    resolved: DictConfig,
    team: TeamConfig,
    workflow: Workflow,
    tasks: Mapping[Split, Sequence[Task]],
    rehearsed: Mapping[Split, Moves],
    made: Mapping[str, ModelToMake],
) -> Iterator[str]:
    """MarlError if the prompts of an agent are all too long for its policy in the shortest `TRIED` tasks of a split.

    `rehearsed` has the moves of one task of each split; others are rehearsed only if its prompts are too long.
    """
    count = _counter(resolved, team, made)
    for split, moves in rehearsed.items():
        lengths = {agent: [n] for agent, n in _too_long(moves, resolved, team, count).items()}
        for task in sorted(tasks[split], key=_size)[:TRIED]:
            if not lengths:
                break
            shortest = _too_long(rehearse(workflow, task, team), resolved, team, count)
            lengths = {agent: [*lengths[agent], n] for agent, n in shortest.items() if agent in lengths}
        for agent, counts in lengths.items():
            policy = team.agents[agent].policy
            limit = f"data.max_prompt_length={_limit(resolved, policy)} (policy '{policy}')"
            problem = f"every {split} prompt of agent '{agent}' is too long: the shortest has {min(counts)} tokens"
            yield f"{problem}, but the limit is {limit}. Set data.max_prompt_length={max(counts)} or more."


def _size(task: Task) -> int:
    return sum(len(message_text(message)) for message in as_observation(observation(task)))


def _limit(resolved: DictConfig, policy: str) -> int:
    return int(resolved.policies[policy].actor_rollout_ref.rollout.prompt_length)


def _too_long(moves: Moves, resolved: DictConfig, team: TeamConfig, count: Callable[[Act], int]) -> dict[str, int]:
    """Agent -> tokens of its shortest prompt, for each agent whose prompts are all longer than its policy's limit."""
    counts: dict[str, list[int]] = {}
    for act in (act for acts in moves for act in acts):
        if not team.policies[team.agents[act.agent].policy].external:
            counts.setdefault(act.agent, []).append(count(act))
    shortest = {agent: min(tokens) for agent, tokens in counts.items()}
    return {agent: n for agent, n in shortest.items() if n > _limit(resolved, team.agents[agent].policy)}


def _counter(resolved: DictConfig, team: TeamConfig, made: Mapping[str, ModelToMake]) -> Callable[[Act], int]:
    """A function that counts the tokens of an act's prompt: 0 if its tokenizer is not on this machine."""
    chats: dict[str, Chat | None] = {}

    def count(act: Act) -> int:
        agent, tools = team.agents[act.agent], (act.parameters or {}).get("tools")
        messages, section = agent.conversation(act.observation), resolved.policies[agent.policy]
        model = made.get(agent.policy)
        plain = model is not None and not tools and not section.actor_rollout_ref.model.custom_chat_template
        if model is not None and plain and (tokens := model.prompt_tokens(messages)) is not None:
            return tokens  # without an import of transformers
        if agent.policy not in chats:
            try:
                chats[agent.policy] = chat_of(agent.policy, section, made, local_files_only=True)
            except (MarlError, OSError):  # `check_templates` reports what cannot be loaded from a folder
                chats[agent.policy] = None
        chat = chats[agent.policy]
        return 0 if chat is None else len(chat.encode_request(messages, tools))

    return count


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
            try:
                chats[name] = chat_of(name, resolved.policies[name], made)
            except MarlError:
                raise
            except Exception as error:
                message = f"data.filter_overlong_prompts needs the tokenizer of policy '{name}', which cannot be loaded"
                raise MarlError(f"{message}: {error}") from error
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
