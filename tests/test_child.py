"""A check in a child process: its imports do not stay, its errors are raised."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from marl_verl.errors import MarlError
from marl_verl.run.child import HEAVY, check_in_child

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


def test_a_process_with_threads_or_torch_checks_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    monkeypatch.delitem(sys.modules, HEAVY, raising=False)
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    check_in_child(lambda: done.append(1))
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setitem(sys.modules, HEAVY, sys)
    check_in_child(lambda: done.append(2))
    assert done == [1, 2]


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
