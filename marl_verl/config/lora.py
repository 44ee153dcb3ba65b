"""What a policy that trains an adapter needs of verl's settings (LoRA: W stays, and W + (alpha / r) B A acts)."""

from __future__ import annotations

import copy

from omegaconf import DictConfig, OmegaConf

from marl_verl.errors import MarlError

SAVED = ("model", "optimizer", "extra")


def with_lora(actor_rollout_ref: DictConfig) -> DictConfig:
    """The settings as they are without an adapter; with one, a copy under which it reaches servers and checkpoints.

    Raises:
        MarlError: a rank that is no whole number of 0 or more, an alpha of 0 or less, a training backend that has
            another LoRA, or the settings of that one.
    """
    model = actor_rollout_ref.model
    rank, strategy = model.lora_rank, str(actor_rollout_ref.actor.strategy)
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 0:
        raise MarlError(f"model.lora_rank must be a whole number, 0 for no adapter, got {rank!r}")
    if OmegaConf.select(model, "lora.rank") and strategy.startswith("fsdp"):
        raise MarlError(
            f"model.lora.rank={model.lora.rank} is for the Megatron backend, and actor.strategy is '{strategy}': set "
            "model.lora_rank"
        )
    if not rank:
        return actor_rollout_ref
    if not strategy.startswith("fsdp"):
        raise MarlError(f"model.lora_rank={rank} needs actor.strategy fsdp2 or fsdp, it is '{strategy}'")
    if not model.lora_alpha > 0:
        raise MarlError(f"model.lora_alpha must be above 0, got {model.lora_alpha}: the adapter would do nothing")
    own = copy.deepcopy(actor_rollout_ref)
    OmegaConf.set_struct(own, False)
    if "dummy" in str(own.rollout.load_format):
        # the servers read the base model themselves, and only the adapter is synced
        own.rollout.load_format = "auto"
    saved = own.actor.checkpoint
    # the base is on disk already. verl's `hf_model` of an adapter is a file whose names no model has: transformers
    # would load random weights from it without an error
    saved.save_contents = [part for part in saved.save_contents if part in SAVED]
    saved.save_lora_only = True
    return own
