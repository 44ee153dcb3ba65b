"""Work in a child process: errors are raised, and nothing runs on."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from marl_verl_local.planning import in_child


def test_a_child_works_while_this_process_does(tmp_path: Path) -> None:
    def work(writing: int) -> int:
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
        os.write(writing, b"runs/x-1")
        return 0

    def meanwhile() -> None:
        subprocess.run([sys.executable, "-c", "pass"], check=True)  # another child that ends
        (tmp_path / "begun").touch()

    assert in_child(work, meanwhile) == "runs/x-1"


def test_an_interrupt_ends_the_child_too(tmp_path: Path) -> None:
    def work(writing: int) -> int:
        try:
            time.sleep(60)
        except KeyboardInterrupt:  # it tidies up
            (tmp_path / "ended").touch()
        return 130

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        with pytest.raises(SystemExit) as ended:
            in_child(work, lambda: time.sleep(30))
    finally:
        signal.signal(signal.SIGINT, handler)
    assert ended.value.code == 130
    assert (tmp_path / "ended").exists()
