"""Settings on a CPU that follow from a policy's model, where the config leaves them out (null): the size of the buckets
in which verl sends weights to the servers, the precision, and whether the servers receive an adapter merged.

On a CPU with instructions for bfloat16, a model of 135M parameters trains 1.6 to 1.9 times as fast as in float32;
weights, gradients and optimiser stay float32. Small models stay in float32: they gain nothing.
"""

import functools
import re
from math import ceil, prod
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from marl_verl.config.hardware import cpu_run
from marl_verl.models.count import model_folder, parameters, shapes

BUCKET = "rollout.checkpoint_engine.update_weights_bucket_megabytes"
SMALLEST_BUCKET, MIB = 64, 1 << 20
LARGE = 10_000_000  # parameters from which bfloat16 is faster
BFLOAT16_FLAGS = {"amx_bf16", "avx512_bf16"}


def with_model_settings(actor_rollout_ref: DictConfig) -> None:
    """Fill in the settings of a policy on a CPU."""
    tensors = shapes(model_folder(str(actor_rollout_ref.model.path)))
    largest = max(map(prod, tensors.values()), default=0)
    needed = ceil(4 * largest / MIB)  # float32, as the training worker has it
    half = parameters(tensors) >= LARGE and bool(BFLOAT16_FLAGS & cpu_flags())
    kind = "bf16" if half else "fp32"
    settings: dict[str, Any] = {
        BUCKET: max(SMALLEST_BUCKET, needed),
        "rollout.dtype": "bfloat16" if half else "float32",
        "actor.fsdp_config.mixed_precision": {"param_dtype": kind, "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
    }
    with open_dict(actor_rollout_ref):
        for key, value in settings.items():
            if OmegaConf.select(actor_rollout_ref, key) is None:
                OmegaConf.update(actor_rollout_ref, key, value)
        lora = actor_rollout_ref.model.lora
        if lora.merge is None:
            # vLLM serves an adapter several times slower on a CPU. verl sends merged weights in bfloat16, which only
            # servers in bfloat16 round anyway.
            lora.merge = actor_rollout_ref.rollout.dtype == "bfloat16"


def uses_all_cores(path: str) -> bool:
    """Whether a process of a CPU run updates a model with all cores, after the others. Small models share the cores.

    The time is about the same, but only one model at a time needs memory for gradients, activations and logits.
    """
    return cpu_run() and parameters(shapes(model_folder(path))) >= LARGE


@functools.cache
def cpu_flags() -> frozenset[str]:
    """The instruction sets of this machine's CPU; empty where /proc/cpuinfo does not list them."""
    file = Path("/proc/cpuinfo")
    flags = re.search(r"^flags\s*:(.*)$", file.read_text(encoding="utf-8") if file.exists() else "", re.MULTILINE)
    return frozenset(flags[1].split()) if flags else frozenset()
