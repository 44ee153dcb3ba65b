"""Real runs of the real stack, shared by the tests that look at them: a start of Ray and vLLM costs a minute."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from marl_verl.testing import real
from marl_verl.testing.real import LIMIT, Finished, resume
from tests.e2e.tour_files import Tour, go

__all__ = ["LIMIT", "Finished", "resume"]
ROOT = Path(__file__).resolve().parents[2]
INVENTORY = ROOT / "recipes" / "quickstart" / "inventory.yaml"
LONG = bool(os.environ.get("MARL_VERL_LONG"))
"""Run also what takes another half an hour and repeats, in another place, what the rest has shown."""
long = pytest.mark.skipif(not LONG, reason="takes minutes more: set MARL_VERL_LONG=1")


def train(folder: Path, *overrides: str, recipe: Path = INVENTORY, **variables: str) -> Finished:
    """Run `marl-verl train RECIPE overrides...` with its run directory at `folder`."""
    return real.train(recipe, folder, *overrides, variables=variables)


def left_running() -> list[str]:
    """Command lines of every process of any marl-verl run, and of Ray or vLLM."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.name().startswith(("ray::", "VLLM::")) or "MARL_VERL_RUN" in process.environ()
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


def left_behind() -> set[str]:
    """Names in shared memory and of sockets and files that runs put into the temporary folder."""
    temporary = {path.name for path in Path(tempfile.gettempdir()).iterdir() if path.name.startswith(("marl-", "rl-"))}
    return temporary | {path.name for path in Path("/dev/shm").iterdir()}


TREE = ("marl.algorithm.name=at-grpo", "marl.sampler.sessions=4")  # what is sampled depends on scores
SIX_STEPS = (
    *("trainer.total_training_steps=6", "trainer.save_freq=1", "trainer.test_freq=2", "marl.checkpoint.keep=2"),
    *("data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=8"),
    *("marl.task.test_size=20", "marl.run.seed=3", *TREE),
)


def recorded(run: Finished) -> dict[str, Any]:
    """All that a run has recorded, without times and memory readings."""
    skipped = ("seconds", "perf/", "mfu")
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    curve = [{key: line[key] for key in line if not any(word in key for word in skipped)} for line in lines]
    files = sorted(path for place in ("journals", "episodes") for path in (run.folder / place).iterdir())
    return {
        "metrics": curve,
        "files": {f"{path.parent.name}/{path.name}": path.read_bytes() for path in files},
        "checkpoints": sorted(path.name for path in (run.folder / "checkpoints").iterdir()),
    }


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run of `SIX_STEPS` without interruption."""
    done = train(tmp_path_factory.mktemp("whole") / "run", *SIX_STEPS)
    assert done.code == 0, done.output
    return recorded(done)


@pytest.fixture(scope="session")
def inventory(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Two agents, two policies, 40 steps of the inventory task."""
    before = left_behind()
    done = train(tmp_path_factory.mktemp("runs") / "inventory", "marl.run.seed=1", "trainer.save_freq=20")
    assert done.code == 0, done.output
    return replace(done, left=sorted(left_behind() - before))


@pytest.fixture(scope="session")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Tour:
    """The run of `tour.py`: many teams, samplers and credit schemes in one start."""
    return go(tmp_path_factory.mktemp("tour"))
