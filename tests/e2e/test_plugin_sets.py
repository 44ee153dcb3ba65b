"""The plugins of a rollout worker are compared with the driver's when a real run starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import left_behind, left_running, long, train

pytestmark = [pytest.mark.e2e, long]  # tests/test_plugins.py compares sets of plugins without a run


def test_a_worker_with_other_plugins_stops_the_run_at_its_start(tmp_path: Path) -> None:
    """As on a cluster where one machine lacks a plugin: Ray starts the workers with another MARL_VERL_PLUGINS."""
    before = left_behind()
    run = train(
        tmp_path / "run",
        "+ray_kwargs.ray_init.runtime_env.env_vars.MARL_VERL_PLUGINS='at-grpo,tiny'",
        "trainer.total_training_steps=1",
        "marl.task.test_size=5",
        MARL_VERL_PLUGINS="at-grpo,sharp,tiny",
    )
    assert run.code == 2, run.output
    (printed,) = [line for line in run.output.splitlines() if line.startswith("marl-verl:")]
    assert "the plugins of rollout worker 0 differ from the driver's: only the driver has marl-verl-sharp==" in printed
    assert not (run.folder / "metrics.jsonl").exists()
    assert left_running() == []  # though policies were starting
    assert left_behind() <= before
