"""What ends or stops a run other than the death of its own processes: Ray's servers, signals, a full disk, a pause.

One run meets one fault after the other and is resumed each time: a reason in one line, nothing left, and in the end
every step once. `test_kill.py` compares such a run with one without interruption. MARL_VERL_LONG=1, six starts.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e import killer
from tests.e2e.conftest import (
    FOUR_STEPS,
    ROOT,
    left_behind,
    left_running,
    long,
    my_team,
    recorded,
    resume,
    train,
)

pytestmark = pytest.mark.e2e

SIX_STEPS = {**FOUR_STEPS, "trainer.total_training_steps": 6, "trainer.test_freq": 2, "data.train_batch_size": 8}
SERVER = "vLLM server of policy 'answerer'"
FAULTS = (
    ("Ray's raylet", "sampling", 2, 1, "Ray's raylet died while sampling in step 2 (killed or out of memory"),
    ("SIGINT", "updating", 3, 130, "interrupted. Continue with: marl-verl train --resume"),
    ("full disk", "updating", 3, 1, "OSError: [Errno 27] File too large"),
    ("Ray's gcs_server", "syncing weights", 4, 1, "Ray's gcs_server died while syncing weights in step 4 (killed"),
    ("SIGTERM", "writing a checkpoint", 5, 130, "interrupted. Continue with: marl-verl train --resume"),
)
"""Fault, phase, step, exit code, message."""


@long
def test_a_run_goes_on_after_every_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = killer.write_site(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(ROOT)]))
    my_team(tmp_path)
    folder, before = tmp_path / "runs" / "faults", left_behind()
    for fault, phase, step, code, message in FAULTS:
        monkeypatch.setenv(killer.VARIABLE, f"{fault}|{phase}|{step}")
        begun = time.monotonic()
        if folder.exists():
            done = resume(folder)
        else:
            overrides = [f"{key}={value}" for key, value in SIX_STEPS.items()]
            done = train(folder, *overrides, recipe=tmp_path / "my_team.yaml")
        print(f"{fault} {phase} {step}: {time.monotonic() - begun:.0f} s", flush=True)
        assert done.code == code, done.output
        assert [line for line in done.output.splitlines() if line.startswith((message, f"marl-verl: {message}"))]
        assert left_running() == []
        assert left_behind() - before == set()
    monkeypatch.setenv(killer.VARIABLE, f"pause {SERVER}|sampling|6")
    with ThreadPoolExecutor(max_workers=1) as threads:
        paused = threads.submit(resume, folder)
        time.sleep(20)
        second = resume(folder)
        done = paused.result()
    assert second.code == 2, second.output
    assert f"run directory '{folder}' is in use by process" in second.output
    assert done.code == 0, done.output
    (line,) = [line for line in done.lines("seconds/step") if line["step"] == 6 and "seconds/step" in line]
    assert line["seconds/step"] > killer.PAUSE
    assert [line["step"] for line in done.lines("train/success")] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in done.lines("validation/success")] == [0, 2, 4, 6]
    stored = [name.split("/")[0] for name in recorded(done)["files"]]
    assert {place: stored.count(place) for place in stored} == {"journals": 6, "episodes": 4, "rows": 6}
