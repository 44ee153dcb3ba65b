"""`data.filter_overlong_prompts`: drop and count the tasks whose prompt is longer than `data.max_prompt_length`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from omegaconf import DictConfig

from marl_verl.config.policy_models import chat_of
from marl_verl.config.resolve import resolve
from marl_verl.episode.messages import as_observation
from marl_verl.errors import MarlError
from marl_verl.models.sources import ModelToMake
from marl_verl.tasks.base import Split, Task
from marl_verl.tasks.verl_rows import observation
from marl_verl.team import TeamConfig


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
