"""Tiny models for a CPU: made on the spot, warmed up on demonstrations, cached by content."""

from __future__ import annotations

from typing import Literal

Family = Literal["qwen3", "llama"]
"""Which network a tiny model is, and with it which tokenizer it has."""
