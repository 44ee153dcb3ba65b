"""Checks of lengths before a run starts: what an agent may see and say fits its policy's servers and model."""

from __future__ import annotations

from collections.abc import Mapping

from omegaconf import DictConfig

from marl_verl.errors import MarlError
from marl_verl.models.count import model_config
from marl_verl.models.sources import ModelToMake
from marl_verl.team import TeamConfig


def check_lengths(resolved: DictConfig, team: TeamConfig, made: Mapping[str, ModelToMake]) -> None:
    """MarlError where prompt and response exceed `rollout.max_model_len` or the model's context, or a server fails.

    Instructions are counted in words, of which each has at least one token: the tokenizer of a model to make is not
    loaded. `check_templates` counts the tokens of other models.
    """
    for name, section in resolved.policies.items():
        where, part = f"marl.policies.{name}", section.actor_rollout_ref
        rollout, given = part.rollout, part.rollout.max_model_len
        prompt, response = int(rollout.prompt_length), int(rollout.response_length)
        row = f"prompt {prompt} + response {response} = {prompt + response} tokens (data.max_prompt_length, "
        row += "data.max_response_length)"
        if given is not None and given < prompt + response:
            raise MarlError(f"'{where}.rollout.max_model_len' is {given}, but a turn may have {row}: raise it")
        own = part.model.override_config.get("max_position_embeddings")
        context = made[name].context if name in made else own or _context(str(part.model.path))
        if given is not None and context is not None and given > context:
            what = f"'{where}.rollout.max_model_len' is {given}, but its model has a context of {context} tokens"
            described = team.policies[name].made
            raise MarlError(f"{what}: lower it" + (f", or raise {where}.{described.name}.context" if described else ""))
        tokens, rows = rollout.max_num_batched_tokens, rollout.max_num_seqs
        if tokens < rows:
            what = f"'{where}.rollout.max_num_batched_tokens' is {tokens}, but must be at least max_num_seqs={rows}"
            raise MarlError(f"{what}: raise it, or lower rollout.max_num_seqs")
        for agent in team.agents.values():
            if agent.policy == name and (words := len(agent.instructions.split())) > prompt:
                raise too_long(agent.name, name, f"{words} words", prompt)


def too_long(agent: str, policy: str, length: str, limit: int) -> MarlError:
    """The error for instructions that leave no room for an observation."""
    what = f"the instructions of agent '{agent}' have {length}, but a prompt of policy '{policy}' has {limit} tokens"
    return MarlError(f"{what}: shorten marl.agents.{agent}.instructions, or raise data.max_prompt_length")


def _context(path: str) -> int | None:
    found = model_config(path).get("max_position_embeddings")
    return found if isinstance(found, int) else None
