"""What an update costs where rows share what they begin with, against separate rows.

Real updates of verl's worker (old log-probs, loss, optimiser) on the same rows, in this process and in turns; Ray,
TransferQueue and servers do not take part.

    siblings        8 answers to each prompt
    tree            8 attempts, each a refinement of an earlier one or an answer to the task
    conversation    6 turns, in which the agent and those who talk to it say about equally much
"""

import argparse
import json
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.verl_actor import Actor, Row, cpu_verl

SETTINGS = ("optim.optimizer=AdamW", "optim.lr=1e-6", "optim.clip_grad=1.0")


class Sizes(NamedTuple):
    """The number of tasks, tokens of a prompt and of a response, and those of a micro-batch."""

    tasks: int
    prompt: int
    response: int
    tokens: int


SIZES = {
    ("tiny", "siblings"): Sizes(32, 24, 6, 65536),
    ("tiny", "tree"): Sizes(32, 24, 6, 65536),
    ("tiny", "conversation"): Sizes(32, 48, 24, 65536),
    ("smollm2-135m", "siblings"): Sizes(1, 512, 64, 2048),
    ("smollm2-135m", "tree"): Sizes(1, 128, 64, 2048),
    ("smollm2-135m", "conversation"): Sizes(2, 48, 24, 2048),
}
Some = Callable[[int], list[int]]
"""A number of random tokens."""


def siblings(sizes: Sizes, some: Some, rng: random.Random) -> Iterator[tuple[list[int], list[int]]]:
    prompt = some(sizes.prompt)
    yield from ((prompt, some(sizes.response)) for _ in range(8))


def tree(sizes: Sizes, some: Some, rng: random.Random) -> Iterator[tuple[list[int], list[int]]]:
    attempts = [some(sizes.prompt)]
    for _ in range(8):
        prompt, response = rng.choice(attempts), some(sizes.response)
        yield prompt, response
        attempts.append(prompt + response + some(8))


def conversation(sizes: Sizes, some: Some, rng: random.Random) -> Iterator[tuple[list[int], list[int]]]:
    said = some(sizes.prompt)
    for _ in range(6):
        response = some(rng.randint(sizes.response // 2, sizes.response))
        yield list(said), response
        said += response + some(sizes.response)


CASES = {function.__name__: function for function in (siblings, tree, conversation)}


def rows_of(case: str, sizes: Sizes, words: int, seed: int = 0) -> list[Row]:
    """The rows of all tasks, of random tokens below `words`."""
    rng = random.Random(seed)
    some = lambda count: [rng.randrange(10, words) for _ in range(count)]  # noqa: E731
    pairs = (pair for _ in range(sizes.tasks) for pair in CASES[case](sizes, some, rng))
    return [Row(prompt, answer, rng.gauss(0, 1), [0.0] * len(answer), [0.0] * len(answer)) for prompt, answer in pairs]


def tiny(folder: Path) -> int:
    """Write the tiny model of the quick start, untrained; returns its number of words."""
    from marl_verl_tiny.factory import make_model, make_tokenizer
    from marl_verl_tiny.model import Shape

    words = make_tokenizer([f"w{number}" for number in range(60)], context=1024)
    make_model(Shape(), words, seed=0).save_pretrained(folder)
    words.save_pretrained(folder)
    return len(words)


def compared(name: str, case: str, rounds: int) -> dict[str, Any]:
    """Tokens and median seconds of updates [shared, separate], which alternate, and the median of their ratios."""
    import torch

    sizes = SIZES[name, case]
    with tempfile.TemporaryDirectory() as place, cpu_verl():
        folder = Path(place, "model")
        if name == "tiny":
            words = tiny(folder)
        else:
            from marl_verl_tiny.pretrained import SMOLLM2

            folder.symlink_to(SMOLLM2.fetch())
            words = 40_000
        settings = [f"actor_rollout_ref.actor.{setting}" for setting in SETTINGS]
        keys = ("actor.ppo_max_token_len_per_gpu", "rollout.log_prob_max_token_len_per_gpu")
        settings = ["ppo-clip", *settings, *(f"actor_rollout_ref.{key}={sizes.tokens}" for key in keys)]
        actors = {share: Actor(folder, *settings, f"marl.run.share_prefixes={share}") for share in (True, False)}
        rows = rows_of(case, sizes, words)
        zeros = [torch.zeros(len(row.response)) for row in rows]
        seconds: dict[bool, list[float]] = {True: [], False: []}
        metrics: dict[bool, dict[str, float]] = {}
        for turn in range(rounds + 1):
            for share, actor in actors.items():
                _, metrics[share] = actor.update(rows, zeros)
                if turn:  # the first round warms up
                    seconds[share].append(actor.seconds)
    return {
        "rows": len(rows),
        "tokens": [int(metrics[share]["tokens/computed"]) for share in (True, False)],
        "seconds": [round(statistics.median(seconds[share]), 3) for share in (True, False)],
        "ratio": round(statistics.median(a / b for a, b in zip(seconds[True], seconds[False], strict=True)), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    models = sorted({name for name, _ in SIZES})
    parser.add_argument("--models", nargs="+", default=models, choices=models)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    options = parser.parse_args()
    for name in options.models:
        for case in options.cases:
            print(json.dumps({"model": name, "case": case, **compared(name, case, options.rounds)}), flush=True)


if __name__ == "__main__":
    main()
