"""Checks for `test_selftest.py` in place of those of `marl-verl selftest`."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from marl_verl_diagnose.selftest.checks import GPUS, Place, facts, place, time_limit

__all__ = ["GPUS", "facts", "place", "time_limit"]


@pytest.mark.gpu(60)
def test_passes(place: Place, record_property: Callable[[str, Any], None]) -> None:
    """passes well"""
    record_property("tokens per second", 12.3456789)
    record_property("gpus", place.gpus)


@pytest.mark.gpu(60)
def test_fails() -> None:
    """fails well"""
    print("\n".join(f"line {number}" for number in range(100)))
    raise ValueError("differs by 0.3")


@pytest.mark.gpu(5)
def test_hangs(place: Place) -> None:
    """As a run: it has a process, which it ends on Ctrl-C."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        Path(place.work, "hanging.pid").write_text(str(process.pid))
        try:
            process.wait()
        finally:
            process.kill()


@pytest.mark.gpu(60)
def test_later() -> None:
    """passes, too"""
