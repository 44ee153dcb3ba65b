"""The two notebooks run in a real Jupyter kernel, whose event loop runs already: one trains, one reads its run.
MARL_VERL_LONG=1."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from marl_verl import load_run
from tests.e2e.conftest import ROOT, long, my_team

pytestmark = pytest.mark.e2e

JUPYTER = ("nbclient", "ipykernel")
EXECUTE = "from nbclient.cli import main; main()"  # `jupyter execute`


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which Jupyter, which the project does not need otherwise, is installed."""
    folder = tmp_path_factory.mktemp("jupyter")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), *JUPYTER]
    subprocess.run(install, check=True, timeout=300)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(folder), "JUPYTER_PATH": str(folder / "share" / "jupyter")}


def executed(name: str, folder: Path, environ: dict[str, str]) -> list[dict[str, Any]]:
    """Execute a notebook in a folder, as in Jupyter, and return the outputs of its code cells."""
    notebook = Path(shutil.copy(ROOT / "examples" / name, folder))
    command = [sys.executable, "-c", EXECUTE, "--inplace", "--timeout=900", notebook.name]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=1000, check=False)
    assert done.returncode == 0, done.stderr
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [output for cell in cells if cell["cell_type"] == "code" for output in cell["outputs"]]


@long
def test_the_notebooks_train_and_read_a_run(tmp_path: Path, environ: dict[str, str]) -> None:
    my_team(tmp_path)
    *_, success = executed("first_team.ipynb", tmp_path, environ)
    run = load_run(tmp_path / "runs" / "my_team-1")
    assert run.summary is not None
    assert float("".join(success["data"]["text/plain"])) == run.summary["success_after"]
    shown = json.dumps(executed("reading_a_run.ipynb", tmp_path, environ))
    curve = [(line["step"], line["train/success"]) for line in run.metrics if "train/success" in line]
    assert [step for step, _ in curve] == [1, 2]
    assert str(curve) in shown
    assert "advantage" in shown
