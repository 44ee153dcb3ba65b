"""What sampling costs where requests have one prompt, against prompts that share nothing.

8 answers of 64 tokens to prompts of 512, by SmolLM2-135M in float32, in this process; `cached` counts the tokens of
prompts that vLLM found in its prefix cache.

    local           the embedded server, which computes equal prompts once
    vllm            with its prefix cache, its default
    seeds           a seed for each request, as `marl.run.repeatable` sets them on vLLM, or none
"""

import asyncio
import itertools
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

ROUNDS, SIBLINGS, PROMPT, RESPONSE, WORDS = 3, 8, 512, 64, 40_000
Prompts = list[list[int]]


def local(folder: str) -> Callable[[Prompts, bool], int]:
    """A function that samples by the embedded server."""
    from marl_verl.backend.local import one_rank  # noqa: F401 - before other imports of verl

    # isort: split
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from marl_verl.backend.local.server import LocalServer

    model = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32)
    server = LocalServer(model, AutoTokenizer.from_pretrained(folder), PROMPT + RESPONSE)
    settings = {"temperature": 1.0, "max_tokens": RESPONSE, "logprobs": True}

    async def answer(prompts: Prompts, seeds: bool) -> None:
        requests = [
            server.generate(f"r{n}", prompt_ids=prompt, sampling_params={**settings, **({"seed": n} if seeds else {})})
            for n, prompt in enumerate(prompts)
        ]
        await asyncio.gather(*requests)

    def run(prompts: Prompts, seeds: bool) -> int:
        asyncio.run(answer(prompts, seeds))
        return 0

    return run


def vllm(folder: str) -> Callable[[Prompts, bool], int]:
    """A function that samples by vLLM and counts tokens that were in its cache."""
    from vllm import LLM, SamplingParams

    engine = LLM(folder, dtype="float32", max_model_len=PROMPT + RESPONSE, enforce_eager=True)

    def run(prompts: Prompts, seeds: bool) -> int:
        settings = [
            SamplingParams(max_tokens=RESPONSE, ignore_eos=True, logprobs=0, seed=n if seeds else None)
            for n in range(len(prompts))
        ]
        outputs = engine.generate([{"prompt_token_ids": ids} for ids in prompts], settings, use_tqdm=False)
        return sum(output.num_cached_tokens or 0 for output in outputs)

    return run


def measured(run: Callable[[Prompts, bool], int]) -> Sequence[dict[str, Any]]:
    """Median seconds of siblings and of other prompts, in turns, and their ratio."""
    rng = random.Random(0)

    def prompt() -> list[int]:
        return [rng.randrange(100, WORDS) for _ in range(PROMPT)]

    results = []
    for seeds in (False, True):
        seconds: dict[bool, list[float]] = {True: [], False: []}
        cached = {True: 0, False: 0}
        for turn, same in itertools.product(range(ROUNDS + 1), (True, False)):
            prompts = [prompt()] * SIBLINGS if same else [prompt() for _ in range(SIBLINGS)]
            begun = time.monotonic()
            cached[same] = run(prompts, seeds)
            if turn:  # the first round warms up
                seconds[same].append(time.monotonic() - begun)
        medians = [round(statistics.median(seconds[same]), 2) for same in (True, False)]
        ratio = statistics.median(a / b for a, b in zip(seconds[True], seconds[False], strict=True))
        results.append({"seeds": seeds, "seconds": medians, "ratio": round(ratio, 2), "cached": cached[True]})
    return results


def main() -> None:
    from marl_verl_tiny.pretrained import SMOLLM2

    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    folder = str(SMOLLM2.fetch())
    for name, server in (("local", local), ("vllm", vllm)):
        for result in measured(server(folder)):
            print(json.dumps({"server": name, **result}), flush=True)


if __name__ == "__main__":
    main()
