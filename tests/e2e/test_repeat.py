"""The same seed gives the same run. That a continued run is the run that would have happened: `test_kill.py`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.conftest import SIX_STEPS, recorded, train

pytestmark = pytest.mark.e2e


@pytest.fixture
def foreign_ray() -> Iterator[None]:
    """Another user's Ray session on the default port, which a run must neither use nor end."""
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    start = [*ray, "start", "--head", "--num-cpus=1", "--include-dashboard=false", "--disable-usage-stats"]
    subprocess.run(start, check=True, timeout=120, stdout=subprocess.DEVNULL)
    servers = [process for process in psutil.process_iter() if "gcs_server" in process.name()]
    yield
    alive = [process.is_running() for process in servers]
    subprocess.run([*ray, "stop", "--force"], check=True, timeout=120, stdout=subprocess.DEVNULL)
    assert alive == [True]


def test_the_same_seed_gives_the_same_run_beside_another_ray_session(
    whole: dict[str, Any], foreign_ray: None, tmp_path: Path
) -> None:
    again = train(tmp_path / "again", *SIX_STEPS)
    assert again.code == 0, again.output
    stored = recorded(again)
    assert len(stored["files"]) == 6 + 4  # a journal a step; episodes of the validations before and after steps 2, 4, 6
    for what, value in whole.items():
        assert stored[what] == value, what
