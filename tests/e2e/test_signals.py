"""Ctrl-C on a terminal, SIGTERM and SIGHUP in every phase of a run: a reason, nothing left, and every step once.

One run is stopped in one phase after the other, and resumed each time; in the end it equals a run without interruption
(sync), or has learnt from every row once (async). MARL_VERL_LONG=1, 18 and 10 starts (15 and 10 minutes).
"""

import fcntl
import os
import pty
import shutil
import signal
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest

from marl_verl import load_run
from tests.e2e import killer
from tests.e2e.conftest import (
    INVENTORY,
    LIMIT,
    ROOT,
    Finished,
    left_behind,
    left_running,
    log_of,
    long,
    recorded,
    resume,
    train,
)

pytestmark = [pytest.mark.e2e, long]

RUN = (
    "marl.run.backend=verl",
    *("trainer.total_training_steps=2", "trainer.save_freq=1", "trainer.test_freq=1", "marl.run.seed=5"),
    *("data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=8", "marl.task.test_size=8"),
    *(
        "marl.policies.asker.model.lora_rank=8",
        "marl.policies.asker.actor.use_kl_loss=true",
        "trainer.logger=[tensorboard]",
    ),
    *("marl.policies.holder.tiny.steps=50", "marl.policies.asker.tiny.steps=50"),
)
ASYNC = (
    *("marl.schedule.mode=async", "marl.schedule.fill=8", "marl.schedule.batch=8"),
    "marl.algorithm.options.loss=ppo-clip-tis",
)
SIGNALS = ("Ctrl-C", "SIGTERM", "SIGHUP")
PRINTED = ("making tiny models", "starting Ray and loading verl", "starting policies")
"""Phases that the command line prints, before the first checkpoint: the next run is a new one."""
PHASES = {
    "sync": (
        *("sampling", "starting", "computing advantages", "updating", "old_log_probs", "ref_log_prob"),
        *("syncing a policy", "writing a checkpoint", "syncing weights", "validating"),
    ),
    "async": (
        *("sampling and learning", "starting", "updating a policy", "ref_log_prob"),
        *("syncing a policy", "writing a checkpoint", "validating"),
    ),
}
"""Phases of step 2, which `killer.py` announces. The first one has made a checkpoint of step 1."""
LAST = ("writing the summary", "stopping Ray")
"""After the last step, which is one more in each of them."""


def stopped(command: list[str], folder: Path, phase: str, step: int, sent: str) -> Finished:
    """Run a command on a terminal of its own until it is in a phase, and press Ctrl-C there, or send it a signal."""
    shown, told = bytearray(), folder.parent / "phase"
    told.unlink(missing_ok=True)
    ours, terminal = pty.openpty()

    def read() -> None:
        try:
            while part := os.read(ours, 1 << 16):
                shown.extend(part)
        except OSError:  # the terminal has been closed
            pass

    def attach() -> None:
        os.setsid()
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # not ignored, as under nohup
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    reader = threading.Thread(target=read, daemon=True)
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "200", killer.VARIABLE: f"{told}|{phase}|{step}"}
    ends = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
    process = subprocess.Popen(command, cwd=folder.parent, env=env, preexec_fn=attach, **ends)
    os.close(terminal)
    reader.start()
    until = time.monotonic() + LIMIT
    try:
        while not (told.exists() or (phase in PRINTED and phase.encode() in shown)):
            assert process.poll() is None, shown.decode() + log_of(folder)
            assert time.monotonic() < until, shown.decode() + log_of(folder)
            time.sleep(0.05)
        time.sleep(1)
        if sent == "Ctrl-C":
            os.write(ours, b"\x03")
        else:
            process.send_signal(signal.Signals[sent])
        code = process.wait(timeout=120)
    finally:
        process.kill()
        reader.join(timeout=10)
        os.close(ours)
    return Finished(folder, code, shown.decode(errors="replace"))


def words(folder: Path, mode: str, steps: int) -> list[str]:
    """The command that begins the run, or goes on with it to a number of steps."""
    marl_verl = [sys.executable, "-m", "marl_verl.cli.main", "train"]
    if any((folder / "checkpoints").glob("step_*")):
        return [*marl_verl, "--resume", str(folder), f"trainer.total_training_steps={steps}"]
    shutil.rmtree(folder, ignore_errors=True)
    place = (f"marl.run.dir={folder.parent}", f"marl.run.name={folder.name}")
    return [*marl_verl, str(INVENTORY), "marl.run.backend=verl", *RUN, *(ASYNC if mode == "async" else ()), *place]


@pytest.mark.parametrize(("mode", "first"), [("sync", "Ctrl-C"), ("sync", "SIGTERM"), ("async", "Ctrl-C")])
def test_a_signal_in_every_phase(tmp_path: Path, mode: str, first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    site = killer.write_site(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(ROOT)]))
    monkeypatch.setenv("MARL_VERL_CACHE", str(tmp_path / "cache"))
    folder, before, failed = tmp_path / "runs" / "signals", left_behind(), list[str]()
    folder.parent.mkdir()
    phases = [*((phase, 2, 2) for phase in PRINTED), ("validating", 0, 2)] if mode == "sync" else []
    phases += [(phase, 2, 2) for phase in PHASES[mode]]
    phases += [(phase, 2, 2 + number) for number, phase in enumerate(LAST)]
    for number, (phase, step, steps) in enumerate(phases):
        sent, begun = SIGNALS[(number + SIGNALS.index(first)) % len(SIGNALS)], time.monotonic()
        done = stopped(words(folder, mode, steps), folder, phase, 0 if phase == "starting" else step, sent)
        left = [*left_running(tmp_path), *(left_behind() - before), *map(str, folder.parent.glob(".*"))]
        what = f"{sent} while {phase}: code {done.code}, left {left}"
        print(f"{what}, {time.monotonic() - begun:.0f} s", flush=True)
        if done.code != 130 or "interrupted" not in done.output or "Traceback" in done.output or left:
            failed.append(f"{what}, {done.output[-2000:]}")
    assert not failed, "\n\n".join(failed)
    done = resume(folder, "trainer.total_training_steps=4")
    assert done.code == 0, done.output
    assert [line["step"] for line in done.lines("train/success")] == [1, 2, 3, 4]
    if mode == "sync":
        whole = train(tmp_path / "runs" / "whole", *RUN, "trainer.total_training_steps=4")
        assert whole.code == 0, whole.output
        assert recorded(done) == recorded(whole)
        return
    lines = done.lines("train/success")
    sampled = [row for step in (1, 2, 3, 4) for row in load_run(folder).rows[step]["rows"]]
    assert len({row["uid"] for row in sampled}) == 4 * 8
    for policy in ("holder", "asker"):
        used = sum(line[f"policy/{policy}/{what}"] for line in lines for what in ("trained_rows", "stale_dropped"))
        assert used + lines[-1][f"policy/{policy}/buffer_rows"] == sum(row["policy"] == policy for row in sampled)
