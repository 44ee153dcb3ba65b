"""Tiny models for a CPU: created on demand, warmed up on demonstrations, cached by a hash of their content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from marl_verl.options import Positive

Progress = Callable[[float], None]
"""Called with the fraction done."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Architecture and sizes of a model. The default has 87 thousand parameters with a vocabulary of 72 words.

    `head_dim` is 32, the smallest that vLLM's CPU attention supports.

    Attributes:
        context: maximum length of prompt and answer together, in tokens.
        family: "qwen3", whose tokens are the task's words, or "llama", with byte-pair encoding: the same text has
            other and more token ids, so data.max_prompt_length and max_response_length must be larger.
    """

    hidden: Positive = 64
    layers: Positive = 2
    heads: Positive = 2
    kv_heads: Positive = 2
    head_dim: Positive = 32
    mlp: Positive = 128
    context: Positive = 256
    family: Literal["qwen3", "llama"] = "qwen3"
