"""The sizes of a model, from its config and the headers of its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from marl_verl.models.count import ENDS, adapter_parameters, model_config, parameters, shapes, shapes_of
from marl_verl.models.sources import ModelToMake


@dataclass(frozen=True)
class Model:
    """The sizes of a model; `ends` are the parameters of embeddings and output layer, `keys` the width of the keys."""

    parameters: int
    adapter: int
    ends: int
    layers: int
    hidden: int
    keys: int
    mlp: int
    vocabulary: int

    @property
    def trained(self) -> int:
        """The parameters that are trained: those of the adapter if there is one."""
        return self.adapter or self.parameters


def sizes(model: DictConfig, made: ModelToMake | None = None) -> Model | None:
    """The sizes of a model from a `model` section; None where its config cannot be read."""
    config = model_config(str(model.path)) if made is None else made.config()
    tensors = shapes(Path(str(model.path)).expanduser()) if made is None else {}
    try:
        tensors = tensors or shapes_of(config)
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        width = int(config.get("head_dim") or hidden // heads)
        experts = int(config.get("num_experts_per_tok") or 1)
        mlp = int(config.get("moe_intermediate_size") or config["intermediate_size"]) * experts
        return Model(
            parameters=parameters(tensors),
            adapter=adapter_parameters(tensors, int(model.lora_rank), model.target_modules) if model.lora_rank else 0,
            ends=parameters({name: size for name, size in tensors.items() if set(name.split(".")) & set(ENDS)}),
            layers=int(config["num_hidden_layers"]),
            hidden=hidden,
            keys=int(config.get("num_key_value_heads") or heads) * width,
            mlp=mlp,
            vocabulary=int(config["vocab_size"]),
        )
    except KeyError:
        return None
