"""The same seed gives the same run, and a continued run is the run that would have happened."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import Finished, resume, train

pytestmark = pytest.mark.e2e
TREE = ("marl.algorithm.name=at-grpo", "marl.sampler.sessions=4")  # what is sampled depends on scores
SHORT = ("marl.task.test_size=60", "trainer.test_freq=3", "trainer.save_freq=3", "marl.run.seed=3", *TREE)


def _curve(run: Finished) -> list[dict[str, float]]:
    """Everything in metrics.jsonl that is not a time or a memory reading."""
    skipped = ("seconds", "perf/", "mfu")
    return [
        {name: value for name, value in line.items() if not any(word in name for word in skipped)}
        for line in run.lines("train/success")
    ]


def _journals(run: Finished) -> dict[str, bytes]:
    """What was sampled: the files of every step."""
    return {path.name: path.read_bytes() for path in sorted((run.folder / "journals").iterdir())}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    done = train(tmp_path_factory.mktemp("repeat") / "whole", *SHORT, "trainer.total_training_steps=6")
    assert done.code == 0, done.output
    return done


@pytest.fixture
def foreign_ray() -> Iterator[None]:
    """Somebody else's Ray session on the default port, which a run must neither use nor end."""
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    start = [*ray, "start", "--head", "--num-cpus=1", "--include-dashboard=false", "--disable-usage-stats"]
    subprocess.run(start, check=True, timeout=120, stdout=subprocess.DEVNULL)
    servers = [process for process in psutil.process_iter() if "gcs_server" in process.name()]
    yield
    alive = [process.is_running() for process in servers]
    subprocess.run([*ray, "stop", "--force"], check=True, timeout=120, stdout=subprocess.DEVNULL)
    assert alive == [True]


def test_the_same_seed_gives_the_same_curve_beside_another_ray_session(
    whole: Finished, foreign_ray: None, tmp_path: Path
) -> None:
    again = train(tmp_path / "again", *SHORT, "trainer.total_training_steps=6")
    assert again.code == 0, again.output
    assert _curve(again) == _curve(whole)
    assert len(_journals(whole)) == 6
    assert _journals(again) == _journals(whole)


def test_a_continued_run_is_the_run_that_would_have_happened(whole: Finished, tmp_path: Path) -> None:
    folder = tmp_path / "halved"
    shutil.copytree(whole.folder, folder)
    shutil.rmtree(folder / "checkpoints" / "step_6")
    done = resume(folder, f"marl.run.dir={tmp_path}")
    assert done.code == 0, done.output
    assert [line["step"] for line in _curve(done)] == [1, 2, 3, 4, 5, 6]
    assert _curve(done) == _curve(whole)
    assert _journals(done) == _journals(whole)
