"""Checkpoint files with the tensors of one FSDP2 rank, from and for modules that are not sharded.

verl's checkpoint manager saves what `state_dict` returns. FSDP2's parameters, and their optimiser state, are DTensors
sharded along dimension 0; with one rank a shard is the whole tensor. So plain tensors are wrapped before they are
saved, and unwrapped before they are loaded: a run continues on either backend.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard


@contextmanager
def as_shards(module: torch.nn.Module, optimizer: Any, mesh: DeviceMesh) -> Iterator[None]:
    """Let `state_dict` return, and `load_state_dict` take, DTensors on a mesh of one rank. `optimizer` may be None."""
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}

    def wrap(tensor: torch.Tensor) -> DTensor:
        return DTensor.from_local(tensor, mesh, [Shard(0)], run_check=False)

    def wrap_weights(_: Any, state: dict[str, Any], *rest: Any) -> None:
        state.update({name: wrap(state[name].detach()) for name in parameters & state.keys()})

    def unwrap_weights(_: Any, state: dict[str, Any], *rest: Any) -> None:
        state.update({name: _plain(value) for name, value in state.items()})

    def wrap_moments(_: Any, state: dict[str, Any]) -> dict[str, Any]:
        return _moments(state, lambda value: wrap(value) if value.dim() else value)  # a count of steps is a scalar

    def unwrap_moments(_: Any, state: dict[str, Any]) -> dict[str, Any]:
        return _moments(state, _plain)

    with ExitStack() as stack:
        stack.callback(module.register_state_dict_post_hook(wrap_weights).remove)
        stack.callback(module.register_load_state_dict_pre_hook(unwrap_weights).remove)
        if optimizer is not None:
            stack.callback(optimizer.register_state_dict_post_hook(wrap_moments).remove)
            stack.callback(optimizer.register_load_state_dict_pre_hook(unwrap_moments).remove)
        yield


def _plain(value: Any) -> Any:
    return value.to_local() if isinstance(value, DTensor) else value


def _moments(state: dict[str, Any], convert: Any) -> dict[str, Any]:
    values = {
        parameter: {name: convert(value) if isinstance(value, torch.Tensor) else value for name, value in part.items()}
        for parameter, part in state["state"].items()
    }
    return {**state, "state": values}
