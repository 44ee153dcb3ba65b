"""Whether what a run loads does load. A version that is right says nothing of a library that is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

from marl_verl.doctor import Finding, error, ok, warning
from marl_verl.doctor.process import Done, outcome, started
from marl_verl.platforms.active import has_accelerator

SECONDS = 240.0
"""A first import compiles what it loads; from a network disk that takes minutes."""

LOADED = {
    "torch": "import torch; print(torch.version.cuda or 'CPU', torch.cuda.device_count())",
    "vLLM": "import torch, vllm.entrypoints.openai.api_server",
    "verl": "import torch, ray, transfer_queue, verl.trainer.ppo.ray_trainer, verl.workers.engine_workers",
}
"""Name -> what loads it, as the processes of a run do."""


def check(note: Callable[[str], None]) -> Iterator[Finding]:
    """A finding for each, in a process of its own, all at once."""
    with ExitStack() as stack:
        work = {name: stack.enter_context(started(code)) for name, code in LOADED.items()}
        for name, running in work.items():
            note(f"loading {name} ...")
            yield finding(name, outcome(running, SECONDS))


def finding(name: str, done: Done) -> Finding:
    """What became of loading it."""
    check = f"import {name}"
    if done.wrong:
        do = f'python -c "{LOADED[name].partition(";")[0]}"   # the whole error; `make install` repairs an installation'
        return error(check, f"{name} does not load: {done.wrong:.300}", do)
    if name != "torch":
        return ok(check, f"{name} loads")
    build, _, count = done.out.splitlines()[-1].partition(" ")
    if has_accelerator() and count == "0":
        do = "nvidia-smi   # and look whether CUDA_VISIBLE_DEVICES hides the GPUs, and whether torch's CUDA is too new"
        return warning(check, f"torch loads (CUDA {build}), and sees no GPU", do)
    return ok(check, f"torch loads ({'CPU build' if build == 'CPU' else f'CUDA {build}'}, {count} GPUs)")
