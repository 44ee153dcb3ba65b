"""Number of parameters of a model and of a LoRA adapter for it, from the headers of the model's files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

from marl_verl.errors import MarlError

# Layers that "all-linear" excludes, as in peft: embeddings, which are not linear layers, and the output layer.
ENDS = ("embed_tokens", "wte", "lm_head", "embed_out")


def shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor in a folder's safetensors; empty without any. MarlError for a damaged file."""
    from safetensors import SafetensorError, safe_open

    found: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="numpy") as file:
                names = file.keys()
                found.update({name: tuple(file.get_slice(name).get_shape()) for name in names})
        except SafetensorError as error:
            raise MarlError(f"the weights in '{path}' cannot be read: {error}") from error
    return found


def parameters(found: Mapping[str, tuple[int, ...]]) -> int:
    return sum(prod(shape) for shape in found.values())


def adapter_parameters(found: Mapping[str, tuple[int, ...]], rank: int, targets: str | Sequence[str]) -> int:
    """Parameters of an adapter: each W [out, in] has B [out, rank] and A [rank, in] (LoRA, arXiv 2106.09685, section
    4.1). `targets`: "all-linear", or the last components of layer names."""
    named = [targets] if isinstance(targets, str) else targets
    layers = {name: name.removesuffix(".weight").rpartition(".")[2] for name, shape in found.items() if len(shape) == 2}
    chosen = [
        name for name, layer in layers.items() if (layer not in ENDS if targets == "all-linear" else layer in named)
    ]
    return sum(rank * sum(found[name]) for name in chosen)
