"""The shape of a tiny model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Interval

from marl_verl.errors import MarlError

Width = Annotated[int, Interval(ge=1, le=1 << 14)]
LANES = 8  # vLLM's kernels for CPUs take vectors of eight numbers

Progress = Callable[[float], None]
"""Called with the fraction done."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Architecture and sizes of a model. The default has 87 thousand parameters with a vocabulary of 72 words.

    `head_dim` is 32, the smallest that vLLM's CPU attention supports.

    Attributes:
        hidden: width of the residual stream, a multiple of 8.
        layers: number of layers.
        heads: number of attention heads.
        kv_heads: number of key and value heads; divides `heads`.
        head_dim: width of a head.
        mlp: width of the feed-forward layer, a multiple of 8.
        context: maximum length of prompt and answer together, in tokens.
        family: "qwen3", whose tokens are the task's words, or "llama", with byte-pair encoding: the same text has
            other and more token ids, so data.max_prompt_length and max_response_length must be larger.
    """

    hidden: Width = 64
    layers: Width = 2
    heads: Width = 2
    kv_heads: Width = 2
    head_dim: Width = 32
    mlp: Width = 128
    context: Annotated[int, Interval(ge=16, le=1 << 20)] = 256
    family: Literal["qwen3", "llama"] = "qwen3"

    def __post_init__(self) -> None:
        for name in ("hidden", "mlp"):
            if (size := getattr(self, name)) % LANES:
                near = LANES * max(1, round(size / LANES))
                raise MarlError(f"{name}={size} must be a multiple of {LANES}, e.g. {near}")
