"""Check that torch, vLLM, verl and the plugins load, in separate processes, so that a crash or a hang does not end the
doctor. Versions alone do not show whether a shared library is missing."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import entry_points
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired

from marl_verl.config.hardware import has_accelerator
from marl_verl.plugins.loading import GROUP, VARIABLE
from marl_verl_diagnose.doctor import Finding, error, ok, warning
from marl_verl_diagnose.doctor.packages import unusable

LIBRARY_SECONDS = 240.0  # the first import compiles modules; on a network disk this takes minutes
PLUGIN_SECONDS = 60.0

LIBRARIES = {  # name -> code that loads it as a run does
    "torch": "import torch; print(torch.version.cuda or 'CPU', torch.cuda.device_count())",
    "vLLM": "import torch, vllm.entrypoints.openai.api_server",
    "verl": "import torch, ray, transfer_queue, verl.trainer.ppo.ray_trainer, verl.workers.engine_workers",
}

PLUGINS = """
import json, os
from marl_verl.plugins import discover
from marl_verl.plugins.loading import VARIABLE
print("\\n" + json.dumps(discover(os.environ.get(VARIABLE), strict=False).describe()))
"""


def libraries(note: Callable[[str], None]) -> Iterator[Finding]:
    """A finding for each library; all are loaded concurrently."""
    with ExitStack() as stack:
        work = {name: stack.enter_context(started(code)) for name, code in LIBRARIES.items()}
        for name, running in work.items():
            note(f"loading {name} ...")
            yield library(name, *outcome(running, LIBRARY_SECONDS))


def library(name: str, out: str, wrong: str) -> Finding:
    """The finding for a library, from the `outcome` of loading it."""
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


def plugins(note: Callable[[str], None]) -> Iterator[Finding]:
    """A finding for each plugin."""
    names, limit = {point.name for point in entry_points(group=GROUP)}, os.environ.get(VARIABLE)
    if limit is not None:
        left = sorted(names - {name.strip() for name in limit.split(",")})
        names -= set(left)
        if left:
            message = f"{VARIABLE}='{limit}' excludes {', '.join(left)}"
            yield warning("plugins", message, f"unset {VARIABLE}   # to load them all")
    note("loading plugins ...")
    with started(PLUGINS) as process:
        out, failed = outcome(process, PLUGIN_SECONDS)
    if failed:
        yield error("plugins", f"the process that loads the plugins failed: {failed}", "marl-verl plugins --debug")
        return
    records = json.loads(out.splitlines()[-1])
    wrong = {record["plugin"] for record in records if record["error"]}
    keep = f"export {VARIABLE}={shlex.quote(','.join(sorted(names - wrong)))}   # excludes what is broken"
    for record in records:
        name, distribution, broken = record["plugin"], record["distribution"], record["error"]
        if not record["enabled"] or name == "builtin":
            continue
        if not broken:
            yield ok(f"plugin {name}", f"{distribution} {record['version']}")
        elif record["target"] == VARIABLE:
            yield error(f"plugin {name}", broken, keep)
        else:
            yield warning(f"plugin {name}", broken, f"{keep}; or pip install --upgrade {distribution}")


@contextmanager
def started(code: str) -> Iterator[Popen[str]]:
    """Run code with this process's Python and module path; it is killed at the block's end."""
    # -P: no modules from the working folder; PYTHONPATH: the modules of this process
    command = [sys.executable, "-P", "-c", code]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    process = Popen(command, env=env, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, text=True, errors="replace")
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def outcome(process: Popen[str], seconds: float) -> tuple[str, str]:
    """(output of a process, why it failed or did not end within `seconds`, or "")."""
    try:
        out, errors = process.communicate(timeout=seconds)
    except TimeoutExpired:
        return "", f"timeout after {seconds:g} s"
    code = process.returncode
    if code == 0:
        return out, ""
    last = next((line for line in reversed(errors.splitlines()) if line.strip()), "")
    ended = f"signal {-code}" if code < 0 else f"exit code {code}"
    return out, last.strip() or f"ended with {ended}, without a message"
