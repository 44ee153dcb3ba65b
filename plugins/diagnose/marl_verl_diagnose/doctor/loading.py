"""Check that torch, vLLM, verl and the plugins load, in separate processes, so that a crash or a hang does not end the
doctor. Versions alone do not show whether a shared library is missing."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired

from marl_verl.config.hardware import has_accelerator
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
import json
from marl_verl.plugins import discover
print("\\n" + json.dumps(discover(strict=False).describe()))
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
    note("loading plugins ...")
    with started(PLUGINS) as process:
        out, failed = outcome(process, PLUGIN_SECONDS)
    if failed:
        yield error("plugins", f"the process that loads the plugins failed: {failed}", "marl-verl plugins --debug")
        return
    for record in json.loads(out.splitlines()[-1]):
        name, distribution, broken = record["plugin"], record["distribution"], record["error"]
        if name == "builtin":
            continue
        if broken:
            yield warning(f"plugin {name}", broken, f"pip install --upgrade {distribution}, or pip uninstall it")
        else:
            yield ok(f"plugin {name}", f"{distribution} {record['version']}")


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
