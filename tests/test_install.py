"""The decisions of scripts/install.py, with the answers of pip, uv and Python faked: nothing is installed here."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "install.py"


@pytest.fixture(scope="module")
def install() -> ModuleType:
    spec = importlib.util.spec_from_file_location("marl_install", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def result(code: int = 0, out: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess([], code, out, "")


def report(version: str, url: str) -> str:
    item = {"metadata": {"name": "torch", "version": version}, "download_info": {"url": url}}
    return json.dumps({"version": "1", "install": [item]})


@pytest.mark.parametrize(
    ("version", "url", "system", "cpu"),
    [
        ("2.13.0+cpu", "file:///wheels/torch-2.13.0%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl", "Linux", True),
        ("2.13.0", "file:///wheels/torch-2.13.0%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl", "Linux", True),
        ("2.13.0", "file:///wheels/torch-2.13.0-cp312-cp312-manylinux_2_28_x86_64.whl", "Linux", False),
        ("2.13.0+cu130", "file:///wheels/torch-2.13.0%2Bcu130-cp312-cp312-linux_x86_64.whl", "Linux", False),
        ("2.13.0", "file:///wheels/torch-2.13.0-cp311-none-macosx_11_0_arm64.whl", "Darwin", True),
    ],
)
def test_pips_report_has_the_build(install: ModuleType, version: str, url: str, system: str, cpu: bool) -> None:
    assert install.is_cpu_build(install.pip_answer(report(version, url)), system) is cpu


def test_uvs_dry_run_has_the_build(install: ModuleType) -> None:
    dry_run = "Resolved 1 package in 3ms\nWould download 1 package\n + torch=={}\n"
    assert install.uv_answer(dry_run.format("2.13.0+cpu")) == "2.13.0+cpu"
    assert install.uv_answer(dry_run.format("2.13.0")) == "2.13.0"
    assert install.uv_answer("error: no solution found\n + torchvision==1.0") == ""


def test_an_accelerator_is_one_that_answers(install: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    assert install.has_accelerator(lambda *_: result(0, "GPU 0: NVIDIA H100 (UUID: x)\n"))
    assert not install.has_accelerator(lambda *_: result(9, "couldn't communicate with the NVIDIA driver"))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert not install.has_accelerator(lambda *_: pytest.fail("not to be run"))


def test_uv_looks_where_pip_looks(install: ModuleType) -> None:
    config = "\n".join(
        [
            ":env:.find-links='/env/wheels'",
            "global.extra-index-url='file:///a file:///b'",
            "global.find-links='/file/wheels'",
            "install.index-url='file:///main'",
            "list.format='json'",
        ]
    )
    env = install.uv_settings(config, {"HOME": "/home/me", "UV_DEFAULT_INDEX": "file:///mine"})
    assert env == {
        "HOME": "/home/me",
        "UV_DEFAULT_INDEX": "file:///mine",
        "UV_INDEX": "file:///a file:///b",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/env/wheels",
    }
    assert install.uv_settings("", {}) == {}


def test_torchs_pin_agrees_with_pyproject(install: ModuleType) -> None:
    """torch's version is pinned in two files, which must agree."""
    assert f'"{install.TORCH}"' in (SCRIPT.parent.parent / "pyproject.toml").read_text(encoding="utf-8")
