"""Ctrl-C at any moment: exit code 130, nothing left running. `test_critic.py` has it in a step."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import INVENTORY, left_running, long

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    "moment", ["starting Ray", *(pytest.param(name, marks=long) for name in ("starting policies", "first validation"))]
)
def test_ctrl_c_leaves_nothing_running(tmp_path: Path, moment: str) -> None:
    command = [sys.executable, "-m", "marl_verl.cli.main", "train", str(INVENTORY), f"marl.run.dir={tmp_path}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path)
    assert process.stdout is not None
    for line in process.stdout:
        if moment in line:
            break
    time.sleep(6)
    process.send_signal(signal.SIGINT)
    rest = process.stdout.read()
    assert process.wait(timeout=120) == 130, rest
    assert "interrupted" in rest
    assert left_running() == []
