"""kill -9 of any process of a run, at any moment: a clear message, nothing left, and a continuation as if nothing was.

A chain is a copy of a run up to step 2, which is killed in step 3 and continued each time: in each phase of a step
another victim. Four chains (MARL_VERL_LONG=1) take a quarter of an hour. `test_whole.py` has a run killed once.
"""

import os
import shutil
from pathlib import Path

import pytest

from tests.e2e import killer
from tests.e2e.conftest import (
    ROOT,
    Finished,
    foreign_ray,
    left_behind,
    left_running,
    long,
    pair,
    recorded,
    resume,
    tracked,
)
from tests.weights import change

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
    assert printed[0].startswith(f"marl-verl: {why}. Continue from step ")
    assert f" with: marl-verl train --resume {done.folder}" in printed[0]
    assert done.code == 1
    assert left_running() == []
    assert left_behind() - before == set()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The run without a kill."""
    with foreign_ray():
        return pair(tmp_path_factory.mktemp("undisturbed"), "verl")


@long
@pytest.mark.parametrize("chain", range(len(VICTIMS)))
def test_a_run_that_is_killed_again_and_again_is_the_run_that_would_have_happened(
    chain: int, undisturbed: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other run was beside another Ray session: so the same seed gives the same run, too."""
    site = killer.write_site(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(ROOT)]))
    folder, before = tmp_path / "runs" / "killed", left_behind()
    shutil.copytree(undisturbed.folder, folder)
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
    assert len([line for line in done.output.splitlines() if not line.startswith("step ")]) < 45, done.output
    stored, expected = recorded(done), recorded(undisturbed)
    # a journal and the rows of each step; episodes of the validations before, and after steps 2 and 4
    assert len(stored["files"]) == 4 + 4 + 3
    rounded = "policy/answerer/reverse_kl"  # of vLLM's log-probs, which it rounds by what else is in a batch
    read = [[line.pop(rounded) for line in run["metrics"] if rounded in line] for run in (stored, expected)]
    assert read[0] == pytest.approx(read[1], rel=1e-6)
    for subject, value in expected.items():
        assert stored[subject] == value, subject
    for metric, steps in (("agent/sender/reward", [*range(1, 5)]), ("validation/success", [0, 2, 4])):
        assert tracked(done, metric) == tracked(undisturbed, metric), metric
        assert [step for step, _ in tracked(done, metric)] == steps
    assert all(change(done.folder, policy) > 0 for policy in ("sender", "answerer"))  # not their teacher
