"""Tiny models for a CPU: made on the spot, warmed up on demonstrations, cached by content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from marl_verl.options import Positive

Progress = Callable[[float], None]
"""Called with the fraction done."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Network and sizes of a model. The default has 87 thousand parameters with a vocabulary of 72 words.

    `head_dim` is 32 because that is the smallest that vLLM's attention on a CPU has.

    Attributes:
        context: longest prompt with answer, in tokens.
        family: "qwen3", whose tokens are the task's words, or "llama", with byte-pair encoding: the same
            text has other ids, and more of them, for which data.max_prompt_length and max_response_length must allow.
    """

    hidden: Positive = 64
    layers: Positive = 2
    heads: Positive = 2
    kv_heads: Positive = 2
    head_dim: Positive = 32
    mlp: Positive = 128
    context: Positive = 256
    family: Literal["qwen3", "llama"] = "qwen3"
