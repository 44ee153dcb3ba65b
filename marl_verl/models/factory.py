"""A Qwen3 of any size, as large as a test needs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM


@dataclass(frozen=True)
class Shape:
    """Sizes of a Qwen3. The default has 87 thousand parameters with a vocabulary of 72 words.

    `head_dim` is 32 because that is the smallest that vLLM's attention on a CPU has.
    """

    hidden: int = 64
    layers: int = 2
    heads: int = 2
    kv_heads: int = 2
    head_dim: int = 32
    mlp: int = 128
    context: int = 256


def make_model(shape: Shape, tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """A model with random weights in float32, the same for the same seed; torch's own random state is left alone."""
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.mlp,
        max_position_embeddings=shape.context,
        tie_word_embeddings=True,
        use_sliding_window=False,
        dtype="float32",
        architectures=["Qwen3ForCausalLM"],
        **ends,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config).float()
    model.generation_config = GenerationConfig(**ends)
    return model
