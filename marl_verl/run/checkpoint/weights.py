"""Weights on disk: the folder of a model, and verl's shards assembled.

A policy's folder in a checkpoint has `model_world_size_W_rank_R.pt` from each of W ranks. Its tensors are DTensors:
the rank's shard along one dimension. A policy with an adapter saves only the adapter.
"""

from pathlib import Path
from typing import Any

from marl_verl.errors import MarlError
from marl_verl.files import read_json
from marl_verl.run.checkpoint import pickles

ADAPTER = "adapter_model.safetensors"


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

    `verl.model_merger` would convert them to bfloat16. MarlError if a shard cannot be read or is not in FSDP's format.
    """
    from torch.distributed.tensor import DTensor

    world = int(read_json(folder / "fsdp_config.json")["world_size"])
    # with several nodes, all ranks must save to a shared folder
    shards = [pickles.load(folder / f"model_world_size_{world}_rank_{rank}.pt") for rank in range(world)]
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


def lora(folder: Path) -> dict[str, Any] | None:
    """`r`, `lora_alpha` and `task_type` of the adapter in a policy's folder of a checkpoint; None without one."""
    path = folder / "lora_train_meta.json"
    meta = read_json(path) if path.is_file() else None
    return meta and {key: meta[key] for key in ("r", "lora_alpha", "task_type")}
