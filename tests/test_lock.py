"""The lock of a run directory: one process at a time, and it ends with the last process that holds it."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from marl_verl.errors import MarlError
from marl_verl.run.run_dir import locked
from marl_verl.threads import at_once, in_thread

HOLD = """
import subprocess, sys
from pathlib import Path
from marl_verl.run.run_dir import locked
with locked(Path(sys.argv[1])) as lock:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=sys.stdin, pass_fds=(lock,))
    print(child.pid, flush=True)
    sys.stdin.read() if sys.argv[2] == "wait" else None
"""


def test_the_lock_lasts_while_a_child_process_has_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path), "go"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        int(holder.stdout.readline())
        holder.wait(timeout=20)
        with pytest.raises(MarlError, match=f"in use by process {holder.pid} on "):
            locked(tmp_path).__enter__()
        holder.stdin.close()  # the child ends
        for _ in holder.stdout:
            pass
    with locked(tmp_path):
        pass


def test_calls_run_at_the_same_time_and_results_keep_their_order() -> None:
    both = threading.Barrier(2, timeout=10)
    assert list(at_once({"b": lambda: both.wait() >= 0, "a": lambda: both.wait() >= 0})) == ["b", "a"]
    assert at_once({}) == {}


def test_the_first_error_is_raised_when_all_calls_have_ended() -> None:
    ended = []

    def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        at_once({"a": fail, "b": lambda: ended.append("b")})
    assert ended == ["b"]
    with pytest.raises(ValueError, match="broken"):
        in_thread("test", fail).result(timeout=10)
