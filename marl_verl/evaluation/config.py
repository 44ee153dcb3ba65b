"""The config of an evaluation: the run's own, with every policy frozen at the weights that are compared."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from marl_verl.config.compose import parse_overrides
from marl_verl.errors import MarlError
from marl_verl.evaluation.request import Part, acting

TAKEN = re.compile(
    r"marl\.(task|workflow|rollout|pools)(\..+)?"
    r"|marl\.agents\.[^.]+\.(instructions|reward|sampling)(\..+)?"
    r"|marl\.policies\.[^.]+\.(rollout|endpoint|pool)(\..+)?"
    r"|marl\.run\.journal_tokens"
    r"|actor_rollout_ref\.rollout\..+"
    r"|data\.(max_prompt_length|max_response_length|apply_chat_template_kwargs)(\..+)?"
    r"|trainer\.(n_gpus_per_node|nnodes)"
    r"|(ray_kwargs|transfer_queue)\..+"
)
"""Keys that change how a team plays. Others are of training and would have no effect."""

ELSEWHERE = (
    (r"marl\.run\.seed", "give --seed"),
    (r"marl\.validation\..+", "sampled sessions are independent, and --sessions says how many"),
    (r"marl\.agents\.[^.]+\.policy", "give --swap a=b"),
    (r"marl\.policies\.[^.]+\.(model|tiny|frozen)(\..+)?", "the weights are those of --step and --untrained"),
)


def check_overrides(overrides: Sequence[str]) -> None:
    """MarlError for an override that does not change how a team plays, or that has an option of its own."""
    for line, change in zip(overrides, parse_overrides(overrides), strict=True):
        key = change.key_or_group
        for pattern, instead in ELSEWHERE:
            if re.fullmatch(pattern, key):
                raise MarlError(f"'{line}' cannot be set for an evaluation: {instead}")
        if not TAKEN.fullmatch(key):
            raise MarlError(
                f"'{line}' does not change how a team plays: an evaluation takes keys of marl.task, marl.workflow, "
                "marl.rollout, marl.pools, actor_rollout_ref.rollout, an agent's instructions, reward or sampling, a "
                "policy's rollout, and data.max_prompt_length or data.max_response_length"
            )


def evaluation_config(
    config: DictConfig, parts: Mapping[str, Part], models: Mapping[str, str], sessions: int, seed: int | None
) -> DictConfig:
    """The unresolved config of an evaluation, from the run's composed config.

    Args:
        parts: agent -> the policy that it acts with; unused policies are left out.
        models: policy of the evaluation -> the model that its servers read.
        sessions: sampled of each task; 1 where there is no sampled pass.
        seed: of sampling; None for the run's own.
    """
    config = copy.deepcopy(config)
    OmegaConf.set_struct(config, False)
    marl = config.marl
    given: Any = OmegaConf.to_container(marl.policies)
    marl.policies = {name: _policy(given[part.source], models.get(name)) for name, part in acting(parts).items()}
    for agent, part in parts.items():
        marl.agents[agent].policy = part.policy
    used = {policy.get("pool") for policy in marl.policies.values()}
    marl.pools = {name: size for name, size in (marl.get("pools") or {}).items() if name in used}
    marl.validation = {"sampler": "independent", "sessions": sessions, "options": {}}
    if seed is not None:
        marl.run.seed = seed
    marl.schedule.mode, marl.critic = "sync", {}
    config.trainer.resume_mode = "disable"
    return config


def _policy(given: Mapping[str, Any] | None, model: str | None) -> dict[str, Any]:
    """A policy's section, frozen; an external endpoint stays as it is. Weights on disk have their adapter merged."""
    policy = {key: value for key, value in (given or {}).items() if key not in ("tiny", "loss", "frozen")}
    if model is not None:
        own = {key: value for key, value in (policy.get("model") or {}).items() if not key.startswith("lora")}
        policy.update(frozen=True, model={**own, "path": model, "lora_rank": 0, "lora_adapter_path": None})
    return policy
