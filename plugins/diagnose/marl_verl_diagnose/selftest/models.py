"""The random model of two checks: a Qwen3 with the vocabulary size of the real ones on a GPU, a small one on a CPU."""

from __future__ import annotations

from marl_verl_tiny.inventory import Inventory
from marl_verl_tiny.shape import Shape

from marl_verl_diagnose.selftest import Place

LARGE = Shape(hidden=1024, layers=8, heads=16, kv_heads=8, head_dim=64, mlp=3072, context=32768)  # 0.24 B parameters
SMALL = Shape(context=1024)
VOCABULARY = {True: 151_936, False: 4_096}  # whether on a GPU -> number of tokens
DEVIATION = 1.0  # of the logits: a log-prob of a wrong position differs by about 1, rounding to bf16 by about 0.01


def random_model(place: Place) -> str:
    """The model's folder, made on the first call. Its words are those of the inventory task, and fillers."""
    import torch
    from marl_verl_tiny.factory import make_model, make_tokenizer

    folder, shape = place.work / "models" / "random", LARGE if place.gpu else SMALL
    if not folder.exists():
        known = Inventory().vocabulary()
        fillers = VOCABULARY[place.gpu] - len(make_tokenizer(known)) - 1
        tokenizer = make_tokenizer([*known, *(f"w{number}" for number in range(fillers))], shape.context)
        tokenizer.add_tokens(["\n"])  # stock verl looks this token up
        model = make_model(shape, tokenizer, seed=0)
        with torch.no_grad():
            model.get_input_embeddings().weight.mul_(DEVIATION / (0.02 * shape.hidden**0.5))
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return str(folder)
