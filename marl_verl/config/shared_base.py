"""Policies with `base: shared`: settings of their one vLLM server and training worker, and the check that they agree.

The processes are those of the first such policy. Its server holds one adapter per policy (vLLM's `max_loras`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from marl_verl.config.server_names import rollout_name
from marl_verl.errors import MarlError, check
from marl_verl.team import TeamConfig

OWN = {
    "actor": (
        *("optim", "policy_loss", "clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "tau_pos"),
        *("tau_neg", "loss_agg_mode", "loss_scale_factor", "entropy_coeff", "calculate_entropy", "use_kl_loss"),
        *("kl_loss_coef", "kl_loss_type", "ppo_epochs", "ppo_mini_batch_size", "shuffle", "data_loader_seed"),
    ),
    "rollout": ("temperature", "top_p", "top_k"),
    "ref": ("ppo_mini_batch_size",),
}
"""Keys of a policy's sections that may differ: those of its optimiser, its loss, and its requests."""


@check
def check_sharing(team: TeamConfig) -> Iterator[str]:
    """MarlError unless several policies share a base model, on one pool."""
    if not team.sharing:
        return
    first, *others = (team.policies[name] for name in team.sharing)
    if not others:
        problem = f"policy '{first.name}' has marl.policies.{first.name}.base=shared, but no other policy has it"
        yield f"{problem}: set it for another policy with the same model, or remove it"
    for other in others:
        compared: list[tuple[str, Any, Any]] = [("pool", first.pool, other.pool)]
        if made := first.made or other.made:
            mine, theirs = (policy.made and policy.made.options for policy in (first, other))
            compared.append((made.name, mine, theirs))
        for key, mine, theirs in compared:
            if mine != theirs:
                problem = f"'marl.policies.{other.name}.{key}' is {theirs}, but that of '{first.name}' is {mine}"
                yield f"{problem}, and both have base=shared: make them equal, or remove base"


def use_shared_base(actor_rollout_ref: DictConfig, policy: str, sharing: Sequence[str]) -> None:
    """Set the servers' name and number of adapters. MarlError without an adapter, or where it would be merged."""
    where, model, strategy = f"marl.policies.{policy}", actor_rollout_ref.model, actor_rollout_ref.actor.strategy
    for wrong, problem in (
        (not model.lora_rank, f"no adapter: set {where}.model.lora_rank, or remove base"),
        (model.lora.merge, "model.lora.merge=true, and a server of several adapters cannot merge them: leave it out"),
        (strategy != "fsdp2", f"actor.strategy={strategy}: it needs fsdp2"),
    ):
        if wrong:
            raise MarlError(f"policy '{policy}' has {where}.base=shared, but {problem}")
    with open_dict(actor_rollout_ref):
        model.lora.merge = False
        rollout = actor_rollout_ref.rollout
        rollout.name = rollout_name(sharing[0])
        served = {"vllm": {"max_loras": len(sharing)}}
        rollout.engine_kwargs = OmegaConf.merge(rollout.engine_kwargs, served)


@check
def check_shared_base(policies: Mapping[str, Mapping[str, Any]], team: TeamConfig) -> Iterator[str]:
    """MarlError for the first setting in which policies with `base: shared` differ; `policies` are resolved."""
    for other in team.sharing[1:]:
        first = team.sharing[0]
        mine, theirs = (dict(_settings(policies[name]["actor_rollout_ref"])) for name in (first, other))
        for key in dict.fromkeys([*mine, *theirs]):
            if mine.get(key) != theirs.get(key):
                problem = f"policies '{first}' and '{other}' have base=shared, but their {key} differ"
                values = f"{mine.get(key)} and {theirs.get(key)}"
                yield f"{problem}, {values}: make marl.policies.{other}.{key} equal, or remove base"


def _settings(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of the settings that must be equal, without sections."""
    for key, value in section.items():
        if prefix and key in OWN.get(prefix.rstrip("."), ()):
            continue
        if isinstance(value, Mapping) and value:
            yield from _settings(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
