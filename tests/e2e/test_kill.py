"""kill -9 of any process of a run, at any moment: a clear message, nothing left, and a continuation as if nothing was.

A chain is a copy of the run of `conftest.whole` up to step 6, which is killed in step 7 and continued each time: in
each phase of a step another victim. Four chains (MARL_VERL_LONG=1, a quarter of an hour) meet each victim in each
phase; without that, the trainer is killed while it writes a checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from marl_verl.trainer.curriculum import FILE
from tests.e2e import killer
from tests.e2e.conftest import (
    EIGHT_STEPS,
    LONG,
    ROOT,
    Finished,
    Whole,
    left_behind,
    left_running,
    long,
    my_team,
    recorded,
    resume,
    tracked,
    train,
)

pytestmark = pytest.mark.e2e

VICTIMS = (killer.DRIVER, "training worker of policy 'sender'", "rollout worker", "vLLM server of policy 'answerer'")
PHASES = ("writing a checkpoint", *(("updating", "sampling", "syncing weights") if LONG else ()))
CHAINS = range(len(VICTIMS) if LONG else 1)
STEP = 7


def _check_end(done: Finished, victim: str, phase: str, before: set[str]) -> None:
    """The error message names the dead process, the phase and the command to continue; no resources are left."""
    when = f"while {phase} in step {STEP}"
    why = f"the {victim} died {when} (killed or out of memory, see train.log)"
    if victim == killer.DRIVER:
        why = f"the trainer was killed (signal 9, perhaps out of memory) {when}"
    printed = [line for line in done.output.splitlines() if line.startswith("marl-verl:")]
    assert printed, done.output
    assert printed[0].startswith(f"marl-verl: {why}. Continue with: marl-verl train --resume {done.folder}")
    assert done.code == 1
    assert left_running() == []
    assert left_behind() - before == set()


@pytest.mark.parametrize("chain", CHAINS)
def test_a_run_that_is_killed_again_and_again_is_the_run_that_would_have_happened(
    chain: int, whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other run was beside another Ray session: so the same seed gives the same run, too."""
    site = killer.write_site(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(ROOT)]))
    folder, before = tmp_path / "runs" / "killed", left_behind()
    shutil.copytree(whole.run.folder, folder)
    for step in (7, 8):
        shutil.rmtree(folder / "checkpoints" / f"step_{step}")
    overrides = [f"marl.run.dir={folder.parent}", f"marl.run.name={folder.name}", "trainer.logger=[tensorboard]"]
    for number, phase in enumerate(PHASES):
        victim = VICTIMS[(number + chain) % len(VICTIMS)]
        monkeypatch.setenv(killer.VARIABLE, f"{victim}|{phase}|{STEP}")
        _check_end(resume(folder, *overrides), victim, phase, before)
    monkeypatch.delenv(killer.VARIABLE)
    done = resume(folder, *overrides)
    assert done.code == 0, done.output
    assert "team success, greedy" in done.output
    printed = [line for line in done.output.splitlines() if not line.startswith("step ")]
    assert len(printed) < 45, done.output
    stored, expected = recorded(done), recorded(whole.run)
    # a journal and the rows of each step; episodes of the validations before and after steps 4 and 8
    assert len(stored["files"]) == 8 + 8 + 3
    for subject, value in expected.items():
        assert stored[subject] == value, subject
    for metric, steps in (("agent/sender/reward", [*range(1, 9)]), ("validation/success", [0, 4, 8])):
        assert tracked(done, metric) == tracked(whole.run, metric), metric
        assert [step for step, _ in tracked(done, metric)] == steps
    assert all(policy["weight_change"] > 0 for policy in done.summary["policies"].values())


@long
def test_a_curriculum_continues_with_the_measured_rates(tmp_path: Path) -> None:
    my_team(tmp_path)
    steps, curriculum = "trainer.total_training_steps", {"marl.data.curriculum.weights.easy": 0}
    options = {**EIGHT_STEPS, **curriculum, "data.train_batch_size": 8, "marl.task.train_size": 24, steps: 4}
    options |= {"actor_rollout_ref.actor.ppo_mini_batch_size": 8, "trainer.logger": ["tensorboard"]}
    whole, halved = (tmp_path / "runs" / name for name in ("whole", "halved"))
    for folder, overrides in ((whole, options), (halved, {**options, steps: 2})):
        done = train(folder, *(f"{key}={value}" for key, value in overrides.items()), recipe=tmp_path / "my_team.yaml")
        assert done.code == 0, done.output
    continued = resume(halved, f"{steps}=4")
    assert continued.code == 0, continued.output
    assert recorded(continued)["metrics"] == recorded(Finished(whole, 0, "", []))["metrics"]
    saved = [json.loads((run / "checkpoints" / "step_4" / "curriculum" / FILE).read_text()) for run in (whole, halved)]
    assert saved[0] == saved[1]
    drawn = sum(int(line["filter/tasks"]) for line in continued.lines("filter/tasks"))
    assert len(saved[0]["tasks"]) <= min(24, drawn)
