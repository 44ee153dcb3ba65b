"""A model's config and sizes, also of a LoRA adapter, from the headers of its files."""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from marl_verl.errors import user_error
from marl_verl.models.sources import ModelToMake

# Layers that "all-linear" excludes, as in peft: embeddings, which are not linear layers, and the output layer.
ENDS = ("embed_tokens", "wte", "lm_head", "embed_out")

HUB_SECONDS = 5


def on_hub(path: str) -> bool:
    """Whether a model is named as one on the hub, and no local folder."""
    return re.fullmatch(r"[\w.-]+/[\w.-]+", path) is not None and not Path(path).exists()


def model_folder(path: str) -> Path:
    """The folder with a model's files: a local one, or the hub's cached snapshot. It need not exist."""
    if on_hub(path):
        from huggingface_hub import try_to_load_from_cache

        if isinstance(cached := try_to_load_from_cache(path, "config.json"), str):
            return Path(cached).parent
    return Path(path).expanduser()


@functools.lru_cache
def model_config(path: str) -> dict[str, Any]:
    """The config.json of a model in a local folder, in the hub's cache or on the hub; {} where there is none.

    The hub is asked once and for seconds: a dry run works without it.
    """
    file, config = model_folder(path) / "config.json", {}
    if file.is_file():
        config = json.loads(file.read_text(encoding="utf-8"))
    elif on_hub(path):
        config = _hub_config(path)
    return {**config, **config.get("text_config", {})}


def _hub_config(name: str) -> dict[str, Any]:
    import httpx
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    url, headers = hf_hub_url(name, "config.json"), build_hf_headers()
    try:  # OSError: HF_HUB_OFFLINE is set
        answer = get_session().get(url, headers=headers, timeout=HUB_SECONDS, follow_redirects=True)
        config: dict[str, Any] = answer.raise_for_status().json()
    except (httpx.HTTPError, OSError):
        return {}
    return config


def shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor in a folder's safetensors; empty without any. MarlError for a damaged file."""
    from safetensors import SafetensorError, safe_open

    tensors: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        cannot = user_error(f"the weights in '{path}' cannot be read", SafetensorError)
        with cannot, safe_open(path, framework="numpy") as file:
            tensors.update({name: tuple(file.get_slice(name).get_shape()) for name in file.keys()})  # noqa: SIM118
    return tensors


def parameters(tensors: Mapping[str, tuple[int, ...]]) -> int:
    return sum(prod(shape) for shape in tensors.values())


def adapter_parameters(tensors: Mapping[str, tuple[int, ...]], rank: int, targets: str | Sequence[str]) -> int:
    """Parameters of an adapter: each W [out, in] has B [out, rank] and A [rank, in] (LoRA, arXiv 2106.09685, section
    4.1). `targets`: "all-linear", or the last components of layer names."""
    named = [targets] if isinstance(targets, str) else targets
    total = 0
    for name, shape in tensors.items():
        layer = name.removesuffix(".weight").rpartition(".")[2]
        if len(shape) == 2 and (layer not in ENDS if targets == "all-linear" else layer in named):
            total += rank * sum(shape)
    return total


@dataclass(frozen=True)
class Model:
    """The sizes of a model; `ends` are the parameters of embeddings and output layer, `adapter` is 0 without one."""

    parameters: int
    adapter: int
    ends: int
    layers: int
    hidden: int
    mlp: int
    vocabulary: int


def sizes(model: DictConfig, made: ModelToMake | None = None) -> Model | None:
    """The sizes of a model from a `model` section; None where its config cannot be read. Without its weights, those of
    a decoder with a gated MLP."""
    config = model_config(str(model.path)) if made is None else made.config()
    tensors = shapes(Path(str(model.path)).expanduser()) if made is None else {}
    try:
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        layers, vocabulary = int(config["num_hidden_layers"]), int(config["vocab_size"])
        mlp = int(config.get("moe_intermediate_size") or config["intermediate_size"])
    except KeyError:
        return None
    ends = ["embed_tokens"] if config.get("tie_word_embeddings") else ["embed_tokens", "lm_head"]
    if not tensors:
        head = int(config.get("head_dim") or hidden // heads)
        queries, keys = heads * head, int(config.get("num_key_value_heads") or heads) * head
        experts = int(config.get("num_experts") or config.get("num_local_experts") or 1)
        layer = {"q_proj": (queries, hidden), "k_proj": (keys, hidden), "v_proj": (keys, hidden)}
        layer["o_proj"] = (hidden, queries)
        for number in range(experts):
            layer |= {f"{number}.{name}_proj": (mlp, hidden) for name in ("gate", "up", "down")}
        tensors = {f"{number}.{name}.weight": shape for number in range(layers) for name, shape in layer.items()}
        tensors |= {f"{name}.weight": (vocabulary, hidden) for name in ends}
    return Model(
        parameters=parameters(tensors),
        adapter=adapter_parameters(tensors, int(model.lora_rank), model.target_modules) if model.lora_rank else 0,
        ends=len(ends) * vocabulary * hidden,
        layers=layers,
        hidden=hidden,
        mlp=mlp * int(config.get("num_experts_per_tok") or 1),
        vocabulary=vocabulary,
    )
