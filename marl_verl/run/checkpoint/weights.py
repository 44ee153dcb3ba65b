"""Weights on disk: assemble verl's shards, and compare weights with those before training.

A policy's folder in a checkpoint has `model_world_size_W_rank_R.pt` from each of W ranks. Its tensors are DTensors:
the rank's shard along one dimension. A policy with an adapter saves only the adapter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from marl_verl.errors import MarlError
from marl_verl.files import read_json
from marl_verl.run.checkpoint import pickles

ADAPTER = "adapter_model.safetensors"


class Tensors(Mapping[str, Any]):
    """The tensors of a folder's safetensors files, by name, read one at a time."""

    def __init__(self, folder: Path) -> None:
        from safetensors import safe_open

        self._files: dict[str, Any] = {}
        for path in sorted(folder.glob("*.safetensors")):
            file: Any = safe_open(path, framework="pt")
            self._files |= dict.fromkeys(file.keys(), file)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._files))

    def __getitem__(self, name: str) -> Any:
        return self._files[name].get_tensor(name)

    def __len__(self) -> int:
        return len(self._files)


def local(model: str) -> Path | None:
    """The folder of a model: the given folder, or the one in the hub's cache; None if it is not on this machine."""
    if Path(model).expanduser().is_dir():
        return Path(model).expanduser()
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError):
        return None


def assembled(folder: Path) -> dict[str, Any]:
    """Assemble the tensors of a policy's folder in a checkpoint: name in the model -> tensor, in the dtype of training.

    `verl.model_merger` would convert them to bfloat16. MarlError if a shard is missing or not in FSDP's format.
    """
    from torch.distributed.tensor import DTensor

    world = int(read_json(folder / "fsdp_config.json")["world_size"])
    shards = []
    for rank in range(world):
        path = folder / f"model_world_size_{world}_rank_{rank}.pt"
        if not path.is_file():
            raise MarlError(f"'{path}' is missing. With several nodes, all ranks must save to a shared folder.")
        shards.append(pickles.load(path))
    # a tensor that is not a DTensor is a buffer, equal on every rank
    return {
        name: _joined([shard[name] for shard in shards], name, folder) if isinstance(first, DTensor) else first
        for name, first in shards[0].items()
    }


def _joined(parts: list[Any], name: str, folder: Path) -> Any:
    """Join a tensor from the ranks' DTensors. With replicas (a 2D mesh) the ranks of the first replica suffice."""
    import torch

    mesh, placement = parts[0].device_mesh.mesh, parts[0].placements[-1]
    local_parts = [parts[rank]._local_tensor for rank in mesh.reshape(-1, mesh.shape[-1])[0].tolist()]
    whole = local_parts[0] if placement.is_replicate() else None
    if placement.is_shard():
        whole = torch.cat(local_parts, dim=placement.dim)
    if whole is None or whole.shape != parts[0].shape:
        raise MarlError(f"tensor '{name}' in '{folder}' has an unsupported sharding: {placement}")
    return whole


def _parts(tensor: Any) -> Any:
    """A tensor in parts of at most 16 MB in float64: an embedding table would take hundreds."""
    return tensor.flatten().split(1 << 21)


def weight_change(before: Path, after: Path | dict[str, Any]) -> tuple[int, float | None]:
    """(parameters, ||after - before|| / ||before||) of Hugging Face folders; None if they share no tensor."""
    new = Tensors(after) if isinstance(after, Path) else after
    parameters, size, change = 0, 0.0, 0.0
    for name, old in Tensors(before).items():
        parameters += old.numel()
        if (now := new.get(name)) is not None:
            for part, other in zip(_parts(old), _parts(now), strict=True):
                size += float(part.double().pow(2).sum())
                change += float((other.double() - part).pow(2).sum())
    return parameters, math.sqrt(change / size) if size else None


def adapter_change(model: Path, tensors: dict[str, Any], scale: float) -> tuple[int, float | None]:
    """(parameters of model and adapter, ||s B A|| / ||W||): the relative weight change by an adapter.

    ||B A||^2 = tr(A A^T B^T B) needs only matrices [r, r]. `tensors` have names with `lora_A` [r, in] and `lora_B`
    [out, r]; the scale s is alpha / r. The change is None for another type of adapter, or if the folder has no weights.
    """
    parameters, size = sum(tensor.numel() for tensor in tensors.values()), 0.0
    for weight in Tensors(model).values():
        parameters += weight.numel()
        size += sum(float(part.double().pow(2).sum()) for part in _parts(weight))
    twins = {name: name.replace(".lora_A.", ".lora_B.") for name in tensors if ".lora_A." in name}
    pairs = [(tensors[a].double(), tensors[b].double()) for a, b in twins.items() if b in tensors]
    if not size or 2 * len(pairs) != len(tensors) or any(a.dim() != 2 or b.dim() != 2 for a, b in pairs):
        return parameters, None
    change = sum(float(((a @ a.T) * (b.T @ b)).sum()) for a, b in pairs)
    return parameters, abs(scale) * math.sqrt(max(0.0, change) / size)


def policy_change(model: str, saved: Path | None) -> tuple[int, float | None]:
    """(parameters, relative weight change from the initial model to a checkpoint's folder) of a policy.

    They are 0 and None if unknown.
    """
    begun = local(model)
    if begun is None:
        return 0, None
    if saved is None:
        return weight_change(begun, begun)[0], None
    if trained := lora(saved):
        return adapter_change(begun, assembled(saved), trained["lora_alpha"] / trained["r"])
    ready = saved / "huggingface"
    return weight_change(begun, ready if any(ready.glob("*.safetensors")) else assembled(saved))


def lora(saved: Path) -> dict[str, Any] | None:
    """`r`, `lora_alpha` and `task_type` of the adapter in a policy's folder of a checkpoint; None without one."""
    path = saved / "lora_train_meta.json"
    if not path.is_file():
        return None
    meta = read_json(path)
    return {key: meta[key] for key in ("r", "lora_alpha", "task_type")}
