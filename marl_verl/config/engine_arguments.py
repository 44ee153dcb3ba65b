"""Check of `rollout.engine_kwargs.vllm`: vLLM's own arguments, which a server would refuse a minute later."""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marl_verl.errors import MarlError, nearest

FILE, CLASSES = "engine/arg_utils.py", ("EngineArgs", "AsyncEngineArgs")
REPLACED = {  # an argument that the run sets -> the key that sets it
    "model": "model.path",
    "tensor_parallel_size": "rollout.tensor_model_parallel_size",
    "data_parallel_size": "rollout.data_parallel_size",
    "gpu_memory_utilization": "rollout.gpu_memory_utilization",
    "max_model_len": "rollout.max_model_len",
    "max_num_seqs": "rollout.max_num_seqs",
    "max_num_batched_tokens": "rollout.max_num_batched_tokens",
    "dtype": "rollout.dtype",
    "load_format": "rollout.load_format",
    "seed": "rollout.seed",
}


@functools.cache
def engine_arguments() -> frozenset[str]:
    """The names of vLLM's engine arguments, read from its source: importing vLLM takes seconds. Empty without vLLM."""
    found = importlib.util.find_spec("vllm")
    file = Path(found.origin).parent / FILE if found is not None and found.origin is not None else Path()
    if not file.is_file():
        return frozenset()
    classes = [each for each in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(each, ast.ClassDef)]
    lines = [line for each in classes if each.name in CLASSES for line in each.body]
    return frozenset(
        line.target.id for line in lines if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    )


def check_engine_arguments(rollout: Any, where: str) -> None:
    """MarlError for an engine argument that vLLM does not have, or that another key of section `where` sets."""
    given = rollout.get("engine_kwargs") if isinstance(rollout, Mapping) else None
    for engine, arguments in (given or {}).items():
        place = f"{where}.rollout.engine_kwargs.{engine}"
        if not arguments:
            continue
        if engine != "vllm":
            raise MarlError(f"'{place}' has no effect: a team is served by vLLM. Use engine_kwargs.vllm.")
        for name in map(str, arguments):
            if name in REPLACED:
                raise MarlError(f"'{place}.{name}' is set by the run: set {where}.{REPLACED[name]} instead")
            if (known := engine_arguments()) and name not in known:
                near = nearest(name, known)
                hint = near if "did you mean" in near else "vLLM's documentation lists its engine arguments"
                raise MarlError(f"unknown key '{place}.{name}': {hint}")
