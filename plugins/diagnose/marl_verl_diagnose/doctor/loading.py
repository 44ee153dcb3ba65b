"""Check that torch, vLLM, verl and the plugins load, in separate processes, so that a crash or a hang does not end the
doctor. Versions alone do not show whether a shared library is missing."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from marl_verl.config.hardware import has_accelerator
from marl_verl_diagnose.doctor import Finding, error, ok, warning
from marl_verl_diagnose.doctor.packages import unusable

SECONDS = 240.0  # the first import compiles modules; on a network disk this takes minutes

LIBRARIES = {  # name -> code that loads it as a run does
    "torch": "import torch; print(torch.version.cuda or 'CPU', torch.cuda.device_count())",
    "vLLM": "import torch, vllm.entrypoints.openai.api_server",
    "verl": "import torch, ray, transfer_queue, verl.trainer.ppo.ray_trainer, verl.workers.engine_workers",
}

PLUGINS = """
import json
from marl_verl.plugins import discover
print("\\n" + json.dumps(discover(strict=False).describe()))
"""


def libraries() -> Iterator[Finding]:
    """A finding for each library; all are loaded concurrently."""
    with ThreadPoolExecutor() as pool:
        for name, (out, wrong) in zip(LIBRARIES, pool.map(executed, LIBRARIES.values()), strict=True):
            yield library(name, out, wrong)


def library(name: str, out: str, wrong: str) -> Finding:
    """The finding for a library, from the result of loading it."""
    check = f"import {name}"
    if wrong:
        first, _, _ = LIBRARIES[name].partition(";")
        do = f'python -c "{first}"   # shows the whole error'
        if not has_accelerator() and (names := unusable()):
            do = f"marl-verl doctor --fix   # removes {', '.join(names)}, unusable on a CPU"
        return error(check, f"{name} does not load: {wrong:.300}", do)
    if name != "torch":
        return ok(check, f"{name} loads")
    build, _, count = out.splitlines()[-1].partition(" ")
    if has_accelerator() and count == "0":
        do = "nvidia-smi   # then check whether CUDA_VISIBLE_DEVICES hides the GPUs, or torch's CUDA is too new"
        return warning(check, f"torch loads (CUDA {build}), but finds no GPU", do)
    return ok(check, f"torch loads ({'CPU build' if build == 'CPU' else f'CUDA {build}'}, {count} GPUs)")


def plugins() -> Iterator[Finding]:
    """A finding for each plugin."""
    out, wrong = executed(PLUGINS)
    if wrong:
        yield error("plugins", f"the process that loads the plugins failed: {wrong}", "marl-verl plugins --debug")
        return
    for record in json.loads(out.splitlines()[-1]):
        name, distribution, broken = record["plugin"], record["distribution"], record["error"]
        if broken:
            yield warning(f"plugin {name}", broken, f"pip install --upgrade {distribution}, or pip uninstall it")
        elif name != "builtin":
            yield ok(f"plugin {name}", f"{distribution} {record['version']}")


def executed(code: str) -> tuple[str, str]:
    """(output of code that this Python runs with this process's module path, why it failed or "")."""
    # -P: no modules from the working folder; PYTHONPATH: the modules of this process
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", code],
            env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "", f"timeout after {SECONDS:g} s"
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return done.stdout, f"{last.strip()} (exit code {done.returncode})" if done.returncode else ""
