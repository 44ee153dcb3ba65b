"""A Qwen3 or a Llama of any size, as large as a test needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from marl_verl.models import Family

# A Llama does not normalise queries and keys as a Qwen3 does: at transformers' 0.02 its attention begins so flat that
# the warm-up is over before it has learnt to look (loss 0.28 instead of 0.16 nats a token on inventory's asker).
LLAMA_INITIAL = 0.05


@dataclass(frozen=True)
class Shape:
    """Sizes of a model. The default has 87 thousand parameters as a Qwen3 with a vocabulary of 72 words.

    `head_dim` is 32 because that is the smallest that vLLM's attention on a CPU has.
    """

    hidden: int = 64
    layers: int = 2
    heads: int = 2
    kv_heads: int = 2
    head_dim: int = 32
    mlp: int = 128
    context: int = 256


def make_model(
    shape: Shape, tokenizer: PreTrainedTokenizerFast, seed: int, family: Family = "qwen3"
) -> PreTrainedModel:
    """A model with random weights in float32, the same for the same seed; torch's own random state is left alone."""
    ends = {
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
    }
    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.mlp,
        "max_position_embeddings": shape.context,
        "tie_word_embeddings": True,
        "dtype": "float32",
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if family == "llama":
            llama = LlamaConfig(**sizes, **ends, architectures=["LlamaForCausalLM"], initializer_range=LLAMA_INITIAL)
            model = LlamaForCausalLM(llama).float()
        else:
            qwen3 = Qwen3Config(**sizes, **ends, architectures=["Qwen3ForCausalLM"], use_sliding_window=False)
            model = Qwen3ForCausalLM(qwen3).float()
    model.generation_config = GenerationConfig(**ends)
    return model
