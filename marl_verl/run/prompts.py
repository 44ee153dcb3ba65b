"""Count the tokens of the prompts of a rehearsal, before a run in which every attempt would fail by their length."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from omegaconf import DictConfig

from marl_verl.config.policy_models import chat_of
from marl_verl.episode import Act, Workflow
from marl_verl.episode.messages import as_observation, message_text
from marl_verl.errors import MarlError, check
from marl_verl.models.chat import Chat
from marl_verl.models.sources import ModelToMake
from marl_verl.run.rehearsal import TRIED, Moves, rehearse
from marl_verl.tasks.base import Split, Task
from marl_verl.tasks.verl_rows import observation
from marl_verl.team import TeamConfig


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
