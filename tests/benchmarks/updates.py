"""What an update costs with the turns of a conversation as one sequence, against a row for each turn.

Real updates of verl's worker (old log-probs, loss, optimiser) on the same rows, in this process and in turns; Ray,
TransferQueue and servers do not take part. Conversations have six turns, in which the agent and those who talk to it
say about equally much.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from tests.verl_actor import Actor, Row, cpu_verl

SETTINGS = ("optim.optimizer=AdamW", "optim.lr=1e-6", "optim.clip_grad=1.0")


class Sizes(NamedTuple):
    """A benchmark's conversations: their number, tokens of a first prompt, of a response and of each answer to it."""

    conversations: int
    first: int
    response: int
    answer: int
    tokens: int  # of a micro-batch


SIZES = {"tiny": Sizes(32, 48, 24, 24, 65536), "smollm2-135m": Sizes(2, 48, 24, 24, 1024)}
TURNS = 6


def conversations(sizes: Sizes, words: int, seed: int = 0) -> list[Row]:
    """The turns of all conversations, of random tokens below `words`."""
    rng = random.Random(seed)
    rows = []
    for _ in range(sizes.conversations):
        said = [rng.randrange(10, words) for _ in range(sizes.first)]
        for _ in range(TURNS):
            response = [rng.randrange(10, words) for _ in range(rng.randint(sizes.response // 2, sizes.response))]
            none = [0.0] * len(response)
            rows.append(Row(list(said), response, rng.gauss(0, 1), none, none))
            said += response + [rng.randrange(10, words) for _ in range(sizes.answer)]
    return rows


def tiny(folder: Path) -> int:
    """Write the tiny model of the quick start, untrained; returns its number of words."""
    from marl_verl_tiny.factory import make_model, make_tokenizer
    from marl_verl_tiny.shape import Shape

    words = make_tokenizer([f"w{number}" for number in range(60)], context=1024)
    make_model(Shape(), words, seed=0).save_pretrained(folder)
    words.save_pretrained(folder)
    return len(words)


def compared(name: str, rounds: int) -> dict[str, Any]:
    """Sizes and median seconds of updates [merged, separate], which alternate, and the median of their ratios."""
    import torch

    sizes = SIZES[name]
    with tempfile.TemporaryDirectory() as place, cpu_verl():
        folder = Path(place, "model")
        if name == "tiny":
            words = tiny(folder)
        else:
            from marl_verl_tiny.pretrained import PRETRAINED

            folder.symlink_to(PRETRAINED[name].fetch())
            words = 40_000
        settings = [f"actor_rollout_ref.actor.{setting}" for setting in SETTINGS]
        longest = f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={sizes.tokens}"
        settings = ["ppo-clip", *settings, longest]
        actors = {merges: Actor(folder, *settings, f"marl.run.merge_turns={merges}") for merges in (True, False)}
        rows = conversations(sizes, words)
        zeros = [torch.zeros(len(row.response)) for row in rows]
        seconds: dict[bool, list[float]] = {True: [], False: []}
        metrics: dict[bool, dict[str, float]] = {}
        for turn in range(rounds + 1):
            for merges, actor in actors.items():
                _, metrics[merges] = actor.update(rows, zeros)
                if turn:  # the first round warms up
                    seconds[merges].append(actor.seconds)
    merged, plain = metrics[True], metrics[False]
    return {
        "rows": [int(each["merge/rows_after"]) for each in (merged, plain)],
        "tokens": [int(each["tokens/trained"]) for each in (merged, plain)],
        "sampled": int(plain["tokens/sampled"]),
        "seconds": [statistics.median(seconds[merges]) for merges in (True, False)],
        "ratio": statistics.median(one / other for one, other in zip(seconds[True], seconds[False], strict=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--models", nargs="+", default=list(SIZES), choices=list(SIZES))
    options = parser.parse_args()
    for name in options.models:
        print(json.dumps({"model": name, **compared(name, options.rounds)}), flush=True)


if __name__ == "__main__":
    main()
