"""Real runs of the real stack, shared by the tests that look at them: a start of Ray and vLLM costs a minute."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
INVENTORY = ROOT / "recipes" / "quickstart" / "inventory.yaml"
LONG = bool(os.environ.get("MARL_VERL_LONG"))
"""Run also what takes another half an hour and repeats, in another place, what the rest has shown."""
long = pytest.mark.skipif(not LONG, reason="takes minutes more: set MARL_VERL_LONG=1")
LIMIT = 900  # seconds; a run that hangs fails the test instead of the machine


@dataclass(frozen=True)
class Finished:
    """A run of `marl-verl train` that has ended."""

    folder: Path
    code: int
    output: str
    left: list[str] = field(default_factory=list)

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.folder / "summary.json").read_text())

    def lines(self, needed: str) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl that have a metric."""
        text = (self.folder / "metrics.jsonl").read_text()
        return [line for line in map(json.loads, text.splitlines()) if needed in line]


def train(folder: Path, *arguments: str, recipe: Path = INVENTORY, **variables: str) -> Finished:
    """Run `marl-verl train RECIPE arguments...` with its run directory at `folder`."""
    folder.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "marl_verl.cli.main", "train", str(recipe), *arguments]
    if "--resume" not in arguments:
        command += [f"marl.run.dir={folder.parent}", f"marl.run.name={folder.name}"]
    return _run(command, folder, variables)


def resume(folder: Path, *arguments: str) -> Finished:
    """Run `marl-verl train --resume folder arguments...`."""
    return _run([sys.executable, "-m", "marl_verl.cli.main", "train", "--resume", str(folder), *arguments], folder, {})


def _run(command: list[str], folder: Path, variables: dict[str, str]) -> Finished:
    done = subprocess.run(
        command,
        cwd=folder.parent,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    log = folder / "train.log"
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-40:]) if done.returncode and log.is_file() else ""
    return Finished(folder, done.returncode, f"{done.stdout}\n{tail}")


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


def told(run: Finished) -> dict[str, Any]:
    """All that a run has learnt and told, without times and memory readings."""
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
    """A run of `SIX_STEPS` that nobody disturbs."""
    done = train(tmp_path_factory.mktemp("whole") / "run", *SIX_STEPS)
    assert done.code == 0, done.output
    return told(done)


@pytest.fixture(scope="session")
def inventory(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Two agents, two policies, 40 steps of the inventory task."""
    before = left_behind()
    done = train(tmp_path_factory.mktemp("runs") / "inventory", "marl.run.seed=1", "trainer.save_freq=20")
    assert done.code == 0, done.output
    return replace(done, left=sorted(left_behind() - before))
