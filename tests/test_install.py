"""The decisions of scripts/install.py, with the answers of pip, uv and Python faked: nothing is installed here."""

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "install.py"


@pytest.fixture(scope="module")
def install() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(SCRIPT)))


def result(code: int = 0, out: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess([], code, out, "")


def report(version: str, url: str) -> str:
    item = {"metadata": {"name": "torch", "version": version}, "download_info": {"url": url}}
    return json.dumps({"version": "1", "install": [item]})


@pytest.mark.parametrize(
    ("version", "url", "system", "cpu"),
    [
        ("2.13.0", "file:///wheels/torch-2.13.0%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl", "Linux", True),
        ("2.13.0+cu130", "file:///wheels/torch-2.13.0%2Bcu130-cp312-cp312-linux_x86_64.whl", "Linux", False),
        ("2.13.0", "file:///wheels/torch-2.13.0-cp311-none-macosx_11_0_arm64.whl", "Darwin", True),
    ],
)
def test_pips_report_has_the_build(install: SimpleNamespace, version: str, url: str, system: str, cpu: bool) -> None:
    assert install.is_cpu_build(install.pip_answer(report(version, url)), system) is cpu


def test_an_accelerator_is_one_that_answers(install: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    assert install.has_accelerator(lambda *_: result(0, "GPU 0: NVIDIA H100 (UUID: x)\n"))
    assert not install.has_accelerator(lambda *_: result(9, "couldn't communicate with the NVIDIA driver"))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert not install.has_accelerator(lambda *_: pytest.fail("not to be run"))


def test_torchs_pin_agrees_with_pyproject(install: SimpleNamespace) -> None:
    """torch's version is pinned in two files, which must agree."""
    assert f'"{install.TORCH}"' in (SCRIPT.parent.parent / "pyproject.toml").read_text(encoding="utf-8")


# The installed verl is used where the working directory is another checkout of it


PROGRAM = """
import importlib.util, json, os, subprocess, sys
from marl_verl.config.verl_keys import verl_configs
from marl_verl.api import use_installed_verl
def where():
    return importlib.util.find_spec("verl").origin
use_installed_verl()
environment = {**os.environ, "PYTHONPATH": sys.argv[1]}
child = subprocess.check_output([sys.executable, "-m", "child"], text=True, env=environment)
found = [where(), str(verl_configs()), child.strip()]
print(json.dumps(found))
"""


def test_a_checkout_in_the_working_directory_is_not_used(tmp_path: Path) -> None:
    checkout, modules = tmp_path / "checkout", tmp_path / "modules"
    (checkout / "verl").mkdir(parents=True)
    (checkout / "verl" / "__init__.py").touch()
    (checkout / "program.py").write_text(PROGRAM)
    modules.mkdir()
    (modules / "child.py").write_text("import importlib.util\nprint(importlib.util.find_spec('verl').origin)\n")
    command = [sys.executable, "-m", "program", str(modules)]
    for paths in ("", f".{os.pathsep}{checkout}"):
        env = {**os.environ, "PYTHONPATH": paths} if paths else dict(os.environ)
        done = subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        origins = json.loads(done.stdout.splitlines()[-1])
        assert len(origins) == 3
        assert not [origin for origin in origins if origin.startswith(str(checkout))]
