"""Opponents on the real stack: servers have exactly the snapshots, and a run that is killed while it loads or writes
one and then continued is the run that would have happened."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import killer
from tests.e2e.conftest import ROOT, Finished, left_running, long, recorded, resume, train
from tests.opponents import check_snapshots

pytestmark = [pytest.mark.e2e, long]

RECIPE = ROOT / "recipes" / "self_play" / "kuhn_pool_cpu.yaml"
SETTINGS = (
    *("trainer.total_training_steps=6", "trainer.save_freq=3", "trainer.test_freq=3", "marl.checkpoint.keep=2"),
    *("data.train_batch_size=12", "actor_rollout_ref.actor.ppo_mini_batch_size=12", "marl.sampler.options.episodes=4"),
    *("marl.task.train_size=120", "marl.task.test_size=12", "marl.policies.player.tiny.steps=50"),
    *("marl.agents.second.opponent.every=1", "marl.agents.second.opponent.size=3", "marl.run.journal_tokens=true"),
)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    done = train(tmp_path_factory.mktemp("opponents") / "whole", *SETTINGS, recipe=RECIPE)
    assert done.code == 0, done.output
    return done


def test_servers_have_the_snapshot_that_a_task_meets(played: Finished) -> None:
    check_snapshots(played)
    kept = {path.name for path in (played.folder / "opponents" / "player").iterdir()}
    assert kept == {f"step_{step}" for step in range(1, 7)}  # of checkpoints 3 and 6


def without_log_probs(run: Finished) -> dict[str, Any]:
    """All that a run has recorded, without log-probs, whose seventh digit depends on a server's other requests."""
    found = recorded(run)
    files = {name: re.sub(rb'"log_probs":\[[^]]*]', b"", content) for name, content in found["files"].items()}
    return {**found, "files": files}


@pytest.mark.parametrize(
    ("victim", "phase"),
    [("vLLM server of policy 'player-past'", "loading snapshots"), (killer.DRIVER, "writing a snapshot")],
)
def test_a_run_that_is_killed_with_a_snapshot_goes_on(
    victim: str, phase: str, played: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = killer.write_site(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv(killer.VARIABLE, f"{victim}|{phase}|5")
    done = train(tmp_path / "killed", *SETTINGS, recipe=RECIPE)
    assert done.code == 1
    assert f"{phase} in step 5" in done.output
    assert left_running() == []
    monkeypatch.delenv(killer.VARIABLE)
    done = resume(done.folder)
    assert done.code == 0, done.output
    assert without_log_probs(done) == without_log_probs(played)
    for step in (3, 6):
        pools = [
            (run.folder / "checkpoints" / f"step_{step}" / "opponents" / "player.json").read_bytes()
            for run in (done, played)
        ]
        assert pools[0] == pools[1]
