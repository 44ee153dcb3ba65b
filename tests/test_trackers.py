"""Trackers: settings are checked before a run starts, and verl's `Tracking` writes into its run directory, offline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from marl_verl.run import trackers
from marl_verl.run.prepare import plan_run

ROOT = Path(__file__).parents[1]
INVENTORY = ROOT / "recipes" / "quickstart" / "inventory.yaml"
OFFLINE = ["tensorboard", "wandb", "mlflow", "file"]
ODD = "agent/the asker (é)/re@ward"  # MLflow refuses `@` and parentheses

PROGRAM = """
import os, sys
from pathlib import Path
from types import SimpleNamespace
from omegaconf import OmegaConf
from verl.utils.tracking import Tracking
from marl_verl.run import trackers
folder, first, last, odd = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
assert set(trackers.TRACKERS) == set(Tracking.supported_backend), Tracking.supported_backend
config = OmegaConf.load(folder / "config.yaml")
trainer = SimpleNamespace(run_dir=SimpleNamespace(folder=folder), config=config)
with trackers.tracked(trainer):
    # as `PPOTrainer.fit` does
    plain = OmegaConf.to_container(config, resolve=True)
    its = config.trainer
    trainer.logger = Tracking(its.project_name, its.experiment_name, its.logger, plain)
    if first == 1:
        trainer.logger.log({"validation/success": 0.25}, 0)
    trackers.begin(trainer.logger, trackers.names_of(config), first)
    for step in range(first, last + 1):
        trackers.flush(trainer.logger)
        success = step / 10 + first
        trainer.logger.log({"train/success": success, "train/success/of_some": success, odd: 1.0 * step}, step)
    if first == 1:
        os._exit(0)  # killed in the next step
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No tracker is set up in the environment, and no one is logged in."""
    for name in list(os.environ):
        if name.startswith(("WANDB_", "MLFLOW_", "TENSORBOARD_", "VERL_FILE")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))


def test_wandb_needs_a_key_unless_it_is_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def offline() -> bool:
        return trackers.variables(tmp_path, ["wandb"]).get("WANDB_MODE") == "offline"

    assert offline()
    (tmp_path / ".netrc").write_text("machine elsewhere.org login user password key\n")
    assert offline()
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password key\n")
    assert not offline()
    (tmp_path / ".netrc").unlink()
    for name, value in (("WANDB_API_KEY", "key"), ("WANDB_MODE", "offline")):
        with monkeypatch.context() as context:
            context.setenv(name, value)
            assert not offline()


@pytest.mark.slow
@pytest.mark.long  # W&B and TensorBoard: tests/e2e
def test_trackers_write_into_the_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps 1 to 3 of a run that is then killed, and 3 to 4 of its continuation from step 2."""
    pytest.importorskip("alembic")  # in the extra `test`, for MLflow
    monkeypatch.setenv("WANDB_MODE", "offline")
    resolved = plan_run(INVENTORY, [f"trainer.logger={OFFLINE}", "trainer.experiment_name=mine"]).resolved
    folder, elsewhere = tmp_path / "mine", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    OmegaConf.save(resolved, folder / "config.yaml")
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    for first, last in ((1, 3), (3, 4)):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(folder), str(first), str(last), ODD],
            cwd=elsewhere,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert list(elsewhere.iterdir()) == []

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(folder / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in board.Scalars("validation/success")] == [(0, 0.25)]
    seen = [(event.step, round(event.value, 3)) for event in board.Scalars("train/success")]
    assert seen == [(1, 1.1), (2, 1.2), (3, 3.3), (4, 3.4)]  # step 3 is the repeated one

    (identity,) = (folder / "wandb" / "run_id").read_text().split()
    offline = sorted((folder / "wandb").glob(f"offline-run-*-{identity}"))
    assert len(offline) == 2
    assert all((path / f"run-{identity}.wandb").stat().st_size > 0 for path in offline)

    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("marl-verl")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time"])
    assert [run.info.run_name for run in runs] == ["mine", "mine"]
    for metric in ("train/success", "train/success/of_some", "agent/the asker _é_/re_at_ward"):
        steps = [[value.step for value in client.get_metric_history(run.info.run_id, metric)] for run in runs]
        assert steps == [[1, 2, 3], [3, 4]], metric

    files = [json.loads(line)["step"] for line in (folder / "tracked.jsonl").read_text().splitlines()]
    assert files == [0, 1, 2, 3]
    assert (folder / "tracked-2.jsonl").is_file()
