"""Sizes of the models that recipes name, as in their public config.json files."""

from typing import Any


def _config(kind: str, hidden: int, layers: int, heads: int, keys: int, mlp: int, words: int, **more: Any) -> Any:
    return {
        **{"model_type": kind, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads},
        **{"num_key_value_heads": keys, "intermediate_size": mlp, "vocab_size": words},
        **more,
    }


QWEN3_8B = _config("qwen3", 4096, 36, 32, 8, 12288, 151936, head_dim=128)
QWEN25_3B = _config("qwen2", 2048, 36, 16, 2, 11008, 151936, tie_word_embeddings=True)
QWEN25_7B = _config("qwen2", 3584, 28, 28, 4, 18944, 152064)
CONFIGS = {
    "Qwen/Qwen3-1.7B": _config("qwen3", 2048, 28, 16, 8, 6144, 151936, head_dim=128, tie_word_embeddings=True),
    "Qwen/Qwen3-4B": _config("qwen3", 2560, 36, 32, 8, 9728, 151936, head_dim=128, tie_word_embeddings=True),
    "Qwen/Qwen3-8B": QWEN3_8B,
    "Qwen/Qwen3-32B": _config("qwen3", 5120, 64, 64, 8, 25600, 151936, head_dim=128),
    "Qwen/Qwen2.5-3B": QWEN25_3B,
    "Qwen/Qwen2.5-Coder-3B": QWEN25_3B,
    "Qwen/Qwen2.5-7B": QWEN25_7B,
    "Qwen/Qwen2.5-Coder-7B": QWEN25_7B,
    "Qwen/Qwen2.5-Coder-7B-Instruct": QWEN25_7B,
    "deepseek-ai/deepseek-coder-6.7b-instruct": _config("llama", 4096, 32, 32, 32, 11008, 32256),
    "inclusionAI/AReaL-boba-2-8B": QWEN3_8B,
    "nvidia/OpenCodeReasoning-Nemotron-32B": _config("qwen2", 5120, 64, 40, 8, 27648, 152064),
    "moonshotai/Kimi-Dev-72B": _config("qwen2", 8192, 80, 64, 8, 29568, 152064),
    "meta-llama/Llama-3.2-3B-Instruct": _config("llama", 3072, 28, 24, 8, 8192, 128256, tie_word_embeddings=True),
}
"""Name on the hub -> config.json, without what the memory estimate does not read."""
"""As the model cards have them."""
SMOLLM2 = _config("llama", 576, 30, 9, 3, 1536, 49152, tie_word_embeddings=True)
