"""kill -9 of any process of a run, at any moment: a clear message, nothing left, and a continuation as if nothing was.

A chain is a copy of the run of `conftest.whole` up to step 2, which is killed in step 3 and continued each time: in
each phase of a step another victim. Four chains (MARL_VERL_LONG=1, a quarter of an hour) meet each victim in each
phase. Without that, a run is begun in one process, continued on Ray and vLLM, killed, and finished in one process.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.e2e import killer
from tests.e2e.conftest import (
    ROOT,
    Finished,
    Whole,
    actions,
    left_behind,
    left_running,
    long,
    recorded,
    resume,
    tracked,
)

pytestmark = pytest.mark.e2e

VICTIMS = (killer.DRIVER, "training worker of policy 'sender'", "rollout worker", "vLLM server of policy 'answerer'")
PHASES = ("writing a checkpoint", "updating", "sampling", "syncing weights")
STEP = 3


def _check_end(done: Finished, victim: str, phase: str, step: int, before: set[str]) -> None:
    """The error message names the dead process, the phase and the command to continue; no resources are left."""
    when = f"while {phase} in step {step}"
    why = f"the {victim} died {when} (killed or out of memory, see train.log)"
    if victim == killer.DRIVER:
        why = f"the trainer was killed (signal 9, perhaps out of memory) {when}"
    printed = [line for line in done.output.splitlines() if line.startswith("marl-verl:")]
    assert printed, done.output
    assert printed[0].startswith(f"marl-verl: {why}. Continue with: marl-verl train --resume {done.folder}")
    assert done.code == 1
    assert left_running() == []
    assert left_behind() - before == set()


@long
@pytest.mark.parametrize("chain", range(len(VICTIMS)))
def test_a_run_that_is_killed_again_and_again_is_the_run_that_would_have_happened(
    chain: int, whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other run was beside another Ray session: so the same seed gives the same run, too."""
    site = killer.write_site(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(ROOT)]))
    folder, before = tmp_path / "runs" / "killed", left_behind()
    shutil.copytree(whole.run.folder, folder)
    for step in (3, 4):
        shutil.rmtree(folder / "checkpoints" / f"step_{step}")
    overrides = [f"marl.run.dir={folder.parent}", f"marl.run.name={folder.name}", "trainer.logger=[tensorboard]"]
    for number, phase in enumerate(PHASES):
        victim = VICTIMS[(number + chain) % len(VICTIMS)]
        monkeypatch.setenv(killer.VARIABLE, f"{victim}|{phase}|{STEP}")
        _check_end(resume(folder, *overrides), victim, phase, STEP, before)
    monkeypatch.delenv(killer.VARIABLE)
    done = resume(folder, *overrides)
    assert done.code == 0, done.output
    assert "team success, greedy" in done.output
    printed = [line for line in done.output.splitlines() if not line.startswith("step ")]
    assert len(printed) < 45, done.output
    stored, expected = recorded(done), recorded(whole.run)
    # a journal and the rows of each step; episodes of the validations before, and after steps 2 and 4
    assert len(stored["files"]) == 4 + 4 + 3
    for subject, value in expected.items():
        assert stored[subject] == value, subject
    for metric, steps in (("agent/sender/reward", [*range(1, 5)]), ("validation/success", [0, 2, 4])):
        assert tracked(done, metric) == tracked(whole.run, metric), metric
        assert [step for step, _ in tracked(done, metric)] == steps


def test_a_run_changes_between_backends(local: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step 3 and all of step 4 but its checkpoint on Ray and vLLM; step 4 again from the checkpoint of step 3."""
    site = killer.write_site(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(ROOT)]))
    folder, before = tmp_path / "runs" / "killed", left_behind()
    shutil.copytree(local.folder, folder)
    for step in (3, 4):
        shutil.rmtree(folder / "checkpoints" / f"step_{step}")
    place = (f"marl.run.dir={folder.parent}", f"marl.run.name={folder.name}")
    monkeypatch.setenv(killer.VARIABLE, f"{killer.DRIVER}|writing a checkpoint|4")
    killed = resume(folder, *place, "marl.run.backend=verl")
    _check_end(killed, killer.DRIVER, "writing a checkpoint", 4, before)
    monkeypatch.delenv(killer.VARIABLE)
    done = resume(folder, "marl.run.backend=local")
    assert done.code == 0, done.output
    for metric in ("train/success", "policy/sender/grad_norm", "policy/answerer/pg_loss", "validation/success"):
        values, others = ({line["step"]: line[metric] for line in run.lines(metric)} for run in (done, local))
        assert values == pytest.approx(others, rel=0.05, abs=0.02), metric
    for step in (3, 4):
        sampled, expected = (actions(run, step) for run in (done, local))
        assert sampled.keys() == expected.keys()
        assert sum(sampled[row] == expected[row] for row in sampled) >= 0.99 * len(sampled)
