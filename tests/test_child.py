"""Work in a child process: imports of checks do not stay, errors are raised, and nothing runs on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from marl_verl.errors import MarlError
from marl_verl.run.child import HEAVY, check_in_child, in_child

RECIPE = Path(__file__).parents[1] / "recipes" / "quickstart" / "inventory.yaml"
TEMPLATE = "{% for m in messages %}{{ m['role'] ~ ' ' ~ m['content'] ~ ' ' }}{% endfor %}"


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process as the command line's: one thread, without torch."""
    monkeypatch.delitem(sys.modules, HEAVY, raising=False)
    monkeypatch.setattr(threading, "active_count", lambda: 1)


@pytest.mark.usefixtures("light")
def test_a_check_that_succeeds_leaves_nothing_here() -> None:
    done: list[int] = []
    check_in_child(lambda: done.append(1))
    assert done == []


@pytest.mark.usefixtures("light")
def test_the_error_of_a_check_is_raised_here(capfd: pytest.CaptureFixture[str]) -> None:
    def check() -> None:
        raise MarlError("no chat template")

    with pytest.raises(MarlError, match="no chat template"):
        check_in_child(check)
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("light")
def test_an_interrupted_check_ends_its_child(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = os.waitpid
    children: list[int] = []

    def interrupted(child: int, options: int) -> tuple[int, int]:
        if children:
            return wait(child, options)
        children.append(child)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "waitpid", interrupted)
    with pytest.raises(KeyboardInterrupt):
        check_in_child(lambda: time.sleep(60))
    with pytest.raises(ProcessLookupError):
        os.kill(children[0], 0)


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


@pytest.mark.slow
def test_a_command_that_has_checked_templates_has_not_imported_torch() -> None:
    code = f"""
import sys
from marl_verl.api import train
keys = {{"actor_rollout_ref.model.custom_chat_template": {TEMPLATE!r}}}
train({str(RECIPE)!r}, keys, dry_run=True, progress=False)
print([name for name in ("torch", "transformers", "vllm") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr
