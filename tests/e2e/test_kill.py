"""kill -9 of any process of a run, at any moment: a clear message, nothing left, and a continuation as if nothing was.

A chain is one run that is killed four times and continued each time: once in each phase of a step, each time another
victim. Four chains (MARL_VERL_LONG=1, half an hour) meet each victim in each phase; without that, the trainer of one
run is killed while it writes a checkpoint.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from marl_verl.trainer.curriculum import FILE
from tests.e2e import killer
from tests.e2e.conftest import (
    INVENTORY,
    LONG,
    ROOT,
    SIX_STEPS,
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

VICTIMS = ("training worker of policy 'sender'", "rollout worker", "vLLM server of policy 'answerer'", killer.DRIVER)
PHASES = {"updating": 2, "sampling": 3, "syncing weights": 4, "writing a checkpoint": 5}
"""Phase -> the step in which a process is killed; validations follow steps 2, 4 and 6."""

CHAINS = range(len(VICTIMS) if LONG else 1)
FEW = ("writing a checkpoint",)


def _check_end(done: Finished, victim: str, phase: str, before: set[str]) -> None:
    """The error message names the dead process, the phase and the command to continue; no resources are left."""
    when = f"while {phase} in step {PHASES[phase]}"
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
    my_team(tmp_path)
    folder, before = tmp_path / "runs" / "killed", left_behind()
    for number, phase in enumerate(PHASES):
        if not LONG and phase not in FEW:
            continue
        victim = VICTIMS[(number + chain) % len(VICTIMS)]
        monkeypatch.setenv(killer.VARIABLE, f"{victim}|{phase}|{PHASES[phase]}")
        if folder.exists():
            done = resume(folder)
        else:
            overrides = [f"{key}={value}" for key, value in SIX_STEPS.items()]
            done = train(folder, *overrides, recipe=tmp_path / "my_team.yaml")
            for name in ("my_team.py", "my_team.yaml"):  # a run has what it needs to go on
                (tmp_path / name).unlink()
        _check_end(done, victim, phase, before)
    monkeypatch.delenv(killer.VARIABLE)
    done = resume(folder)
    assert done.code == 0, done.output
    stored, expected = recorded(done), recorded(whole.run)
    # a journal and the rows of each step; episodes of the validations before and after steps 2, 4, 6
    assert len(stored["files"]) == 6 + 6 + 4
    for what, value in expected.items():
        assert stored[what] == value, what
    for metric, steps in (("agent/sender/reward", [1, 2, 3, 4, 5, 6]), ("validation/success", [0, 2, 4, 6])):
        assert tracked(done, metric) == tracked(whole.run, metric), metric
        assert [step for step, _ in tracked(done, metric)] == steps
    refills = [line["filter/refill_rounds"] for line in done.lines("filter/refill_rounds")]
    assert len(refills) == 6
    assert max(refills) == 1  # the run that is continued has filled a batch, too
    assert all(policy["weight_change"] > 0 for policy in done.summary["policies"].values())


@long
def test_a_curriculum_continues_with_the_measured_rates(tmp_path: Path) -> None:
    my_team(tmp_path)
    steps, curriculum = "trainer.total_training_steps", {"marl.data.curriculum.weights.easy": 0}
    given = {**SIX_STEPS, **curriculum, "marl.task.train_size": 24, steps: 4}
    whole, halved = (tmp_path / "runs" / name for name in ("whole", "halved"))
    for folder, own in ((whole, given), (halved, {**given, steps: 2})):
        done = train(folder, *(f"{key}={value}" for key, value in own.items()), recipe=tmp_path / "my_team.yaml")
        assert done.code == 0, done.output
    continued = resume(halved, f"{steps}=4")
    assert continued.code == 0, continued.output
    expected = recorded(Finished(whole, 0, "", []))
    assert recorded(continued)["metrics"] == expected["metrics"]
    assert recorded(continued)["files"] == expected["files"]
    saved = [json.loads((run / "checkpoints" / "step_4" / "curriculum" / FILE).read_text()) for run in (whole, halved)]
    assert saved[0] == saved[1]
    drawn = sum(int(line["filter/tasks"]) for line in continued.lines("filter/tasks"))
    pools = [key for line in continued.lines("curriculum/drawn/new") for key in line if key.startswith("curriculum/d")]
    assert len(saved[0]["tasks"]) <= min(24, drawn)
    assert {"curriculum/drawn/new", "curriculum/drawn/easy"} <= set(pools)


@long  # test_topologies.py has it at the end of a run
def test_a_killed_command_line_takes_its_run_with_it(tmp_path: Path) -> None:
    before = left_behind()
    command = [sys.executable, "-m", "marl_verl.cli.main", "train", str(INVENTORY), f"marl.run.dir={tmp_path}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path)
    assert process.stdout is not None
    for line in process.stdout:
        if "first validation" in line:
            break
    assert len(left_running()) > 5
    process.kill()
    process.wait()
    begun = time.monotonic()
    while left_running() or left_behind() - before:
        assert time.monotonic() - begun < 60, (left_running(), left_behind() - before)
        time.sleep(0.2)
