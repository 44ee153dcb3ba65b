"""No run resources remain, whichever process is killed. Without Ray; tests/e2e/test_kill.py uses it."""

import json
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import psutil
import pytest

from marl_verl.config import hardware
from marl_verl.config.hardware import RUN_VARIABLE
from marl_verl.run.cleanup import RECORD, Process, RunResources, abandoned
from tests.sleeper import NAP, WHO
from tests.waiting import alive, wait_until

LIMIT = 30.0
DEAD = Process(pid=2**22 + 1, created=0.0)  # above the kernel's largest


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder of the test's own, short enough for sockets. pytest has made its own one before."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr("tempfile.tempdir", None)
        yield Path(folder)


@pytest.fixture
def started(temporary: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen, dict[str, Any]]]:
    """A command line, and the record that `tests/sleeper.py` wrote about its run."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.sleeper", "start", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    wait_until(lambda: (tmp_path / WHO).is_file(), LIMIT, "the run to start")
    who = json.loads((tmp_path / WHO).read_text())
    assert all(map(alive, who["pids"]))
    assert all(Path("/dev/shm", name).exists() for name in who["shared"])
    yield process, who
    process.kill()
    for pid in filter(alive, who["pids"]):
        os.kill(pid, signal.SIGKILL)


def _is_clean(who: dict[str, Any]) -> bool:
    there = [Path(who["scratch"]), *(Path("/dev/shm", name) for name in who["shared"])]
    return not any(map(alive, who["pids"])) and not any(path.exists() for path in there)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "why"), [(signal.SIGKILL, "signal 9, perhaps out of memory"), (signal.SIGABRT, "signal 6")]
)
def test_a_killed_trainer_is_reported_with_its_activity(started: Any, number: int, why: str) -> None:
    process, who = started
    os.kill(who["pids"][0], number)
    output, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    assert f"marl-verl: the trainer was killed ({why}) while sleeping in step 3. No checkpoint" in output.decode()
    assert _is_clean(who)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_line_leaves_nothing(started: Any, number: int) -> None:
    process, who = started
    process.send_signal(number)
    output, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 130, output
    assert _is_clean(who)


@pytest.mark.slow
def test_a_killed_command_line_leaves_nothing(started: Any, tmp_path: Path) -> None:
    process, who = started
    process.kill()
    wait_until(lambda: _is_clean(who), LIMIT, "the trainer to end and to clean up")
    assert "the command line has ended" in (tmp_path / "train.log").read_text()


@pytest.mark.slow
def test_after_both_were_killed_the_next_run_removes_what_they_left(started: Any) -> None:
    process, who = started
    trainer = psutil.Process(who["pids"][0])
    for each in (trainer, process):  # at once: stopped first, so that neither notices
        each.send_signal(signal.SIGSTOP)
    process.kill()
    trainer.kill()
    process.wait()
    wait_until(lambda: not alive(trainer.pid), LIMIT, "the trainer to end")
    assert not _is_clean(who)
    assert [killed.cleanup() for killed in abandoned()] == [who["scratch"]]
    assert _is_clean(who)


# -- which runs are abandoned ------------------------------------------------------------------------------------


def _abandoned(**changes: Any) -> RunResources:
    found = replace(RunResources.begin("a run"), **{"command": DEAD, "trainer": DEAD, **changes})
    found.write()
    return found


@pytest.mark.parametrize("change", ["command", "trainer", "machine"])
def test_a_run_with_a_process_that_lives_or_on_another_machine_is_left_alone(temporary: Path, change: str) -> None:
    _abandoned(**{change: "another boot pid:[1]" if change == "machine" else Process.of(os.getpid())})
    assert [killed.cleanup() for killed in abandoned()] == []


def test_a_process_id_that_was_given_to_another_process_is_not_the_run(temporary: Path) -> None:
    """Neither is the run alive because of it, nor is a process of that session ended."""
    other = subprocess.Popen([sys.executable, "-c", NAP], start_new_session=True)
    found = _abandoned(trainer=Process(other.pid, created=0.0))
    assert found.processes() == []
    assert [killed.cleanup() for killed in abandoned()] == [found.scratch]
    assert other.poll() is None
    other.kill()
    other.wait()


def test_folders_of_other_users_are_ignored(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _abandoned()
    monkeypatch.setattr(os, "getuid", lambda: -1)
    assert [killed.cleanup() for killed in abandoned()] == []


@pytest.mark.parametrize("how", ["writable by all", "linked folder", "linked record"])
def test_a_record_that_others_could_have_written_is_ignored(temporary: Path, tmp_path: Path, how: str) -> None:
    found = Path(_abandoned().scratch)
    assert stat.S_IMODE(found.stat().st_mode) == 0o700
    if how == "writable by all":
        found.chmod(0o777)
    elif how == "linked folder":
        found.rename(tmp_path / "elsewhere")
        found.symlink_to(tmp_path / "elsewhere")
    else:
        (found / RECORD).rename(tmp_path / "record")
        (found / RECORD).symlink_to(tmp_path / "record")
    assert [killed.cleanup() for killed in abandoned()] == []
    command = [sys.executable, "-m", "marl_verl.run.cleanup", str(found)]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "only this user can write to" in refused.stderr or "Not a directory" in refused.stderr
    assert found.is_dir()


@pytest.mark.parametrize("content", ["", '{"run": "x"}'])
def test_folders_that_only_look_like_ours_are_left_alone(temporary: Path, content: str) -> None:
    (temporary / "marl-1").mkdir()
    (temporary / "marl-1" / RECORD).write_text(content)
    (temporary / "marl-2").mkdir()
    (temporary / "marl-3").write_text("a file")
    assert [killed.cleanup() for killed in abandoned()] == []
    assert len(list(temporary.iterdir())) == 3


# -- what is the run's -------------------------------------------------------------------------------------------


def test_another_run_and_other_processes_stay(temporary: Path) -> None:
    begun = RunResources.begin("mine")
    run = [sys.executable, "-c", NAP]
    mine = subprocess.Popen(run, env={**os.environ, RUN_VARIABLE: "mine"})
    others = [subprocess.Popen(run, env={**os.environ, RUN_VARIABLE: "yours"}), subprocess.Popen(run)]
    wait_until(lambda: begun.processes(), LIMIT, "its environment to be there")
    begun.cleanup()
    assert not alive(mine.pid)
    assert [other.poll() for other in others] == [None, None]
    for other in others:
        other.kill()
        other.wait()


@pytest.mark.slow
def test_a_process_that_does_not_end_when_asked_is_killed(temporary: Path) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True)"
    begun = RunResources.begin("mine")
    env, command = {**os.environ, RUN_VARIABLE: "mine"}, [sys.executable, "-c", f"{deaf}; {NAP}"]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    begun.cleanup()
    assert not alive(process.pid)


@pytest.mark.parametrize("kind", ["sem.mp-", "verl_weights_"])
def test_unused_shared_memory_is_removed_and_that_from_before_the_run_is_kept(temporary: Path, kind: str) -> None:
    """As if its owner and Python's resource tracker were killed together."""
    made = {name: Path("/dev/shm") / f"{kind}{name}{os.getpid()}" for name in ("before", "after")}
    made["before"].touch()
    begun = RunResources.begin("mine")
    made["after"].touch()
    begun.cleanup()
    assert [made["before"].exists(), made["after"].exists()] == [True, False]
    made["before"].unlink()


def test_what_another_process_holds_stays(temporary: Path) -> None:
    begun = RunResources.begin("mine")
    semaphore = multiprocessing.get_context("spawn").Semaphore()
    memory = shared_memory.SharedMemory(name=f"verl_weights_{os.getpid()}", create=True, size=64)
    begun.cleanup()
    held = [f"sem.{semaphore._semlock.name.removeprefix('/')}", memory.name]  # type: ignore[attr-defined]
    assert [Path("/dev/shm", name).exists() for name in held] == [True, True]
    memory.close()
    memory.unlink()


def test_sockets_of_the_run_go_and_those_of_others_stay(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hardware.POLICIES_VARIABLE, '["a", "b"]')
    run = f"run {os.getpid()}"
    paths = {}
    for name in (run, "another"):
        monkeypatch.setenv(RUN_VARIABLE, name)
        rank = hardware.first_replica_rank(hardware.rollout_name("b"))
        paths[name] = Path(f"/tmp/rl-colocate-zmq-{os.getpid()}-replica-{rank}-rank-0.sock")
        paths[name].touch()
    assert zlib.crc32(run.encode()) % hardware.RUNS != zlib.crc32(b"another") % hardware.RUNS
    RunResources.begin(run).cleanup()
    assert not paths[run].exists()
    assert paths["another"].exists()
    paths["another"].unlink()
