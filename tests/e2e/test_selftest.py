"""One check of `marl-verl selftest` on the real stack; all of them with MARL_VERL_LONG=1."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from marl_verl_diagnose.selftest import checks

from tests.e2e.conftest import left_behind, left_running, long

pytestmark = pytest.mark.e2e


def selftest(folder: Path, *arguments: str, seconds: float) -> dict[str, Any]:
    """Check name -> its record in the report."""
    command = [sys.executable, "-m", "marl_verl.cli.main", "selftest", "--output", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, cwd=folder.parent)
    assert done.returncode == 0, done.stdout + (folder / "report.json").read_text()
    return {check["name"]: check for check in json.loads((folder / "report.json").read_text())["checks"]}


@long
def test_all_checks(tmp_path: Path) -> None:
    before = left_behind()
    results = selftest(tmp_path / "new", seconds=3600)
    assert left_running() == []
    assert left_behind() <= before
    names = [name for name in vars(checks) if name.startswith("test_")]
    assert [(f"test_{name.replace('-', '_')}", check["state"]) for name, check in results.items()] == [
        (name, "passed") for name in names
    ]
