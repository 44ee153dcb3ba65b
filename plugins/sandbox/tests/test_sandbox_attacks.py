"""Attack programs: none gets a score that it has not earned, none does what its tier promises to prevent."""

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from marl_verl_sandbox import Limits, Sandbox, runs, unavailable

from plugins.sandbox.tests.sandbox_attacks import ESCAPES, EXHAUSTION, FORGERIES
from tests.waiting import wait_until

TIERS = [tier for tier in ("limits", "isolated") if not unavailable(tier)]
SHORT = Limits(seconds=0.5, megabytes=256)
LONG = Limits(seconds=20.0, megabytes=256)
STUCK = ("half a message", "a thread that answers", "an exhausted stack")  # end by their time limit

tiers = pytest.mark.parametrize("tier", TIERS)


def left(tier: str) -> list[int]:
    """The processes of a tier's template that are there."""
    return [child.pid for child in psutil.Process(runs.template(tier)._process.pid).children(recursive=True)]


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with targets(tmp_path_factory.mktemp("victim")) as names:
        yield names


@contextlib.contextmanager
def targets(folder: Path) -> Iterator[dict[str, Any]]:
    """What attacks aim at: a process, a folder, sockets, and a variable in this process's environment."""
    (folder / "file").write_text("SECRET")
    (folder / "empty").touch()
    folder.chmod(0o777)
    os.environ["SECRET"] = "SECRET"
    name = f"marl-verl-{secrets.token_hex(8)}"
    path = os.path.relpath(folder / "socket")
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
        subprocess.Popen(["sleep", "1000"], start_new_session=True) as process,
    ):
        unix.bind(path)
        abstract.bind(f"\0{name}")
        datagrams.bind(f"\0{name}-d")
        datagrams.setblocking(False)
        shared = Path("/dev/shm", name)
        shared.touch()
        unix.listen()
        abstract.listen()
        site = Path(pytest.__file__).parents[1]
        try:
            yield {"pid": process.pid, "folder": folder, "port": server.getsockname()[1], "name": name, "site": site}
            assert process.poll() is None
        finally:
            shared.unlink()
            process.kill()
    del os.environ["SECRET"]


@tiers
@pytest.mark.parametrize("name", FORGERIES)
def test_no_score_without_the_expected_value(name: str, tier: str) -> None:
    secret, box = f"SECRET-{secrets.token_hex(8)}", Sandbox(tier)
    limits = SHORT if name in STUCK else LONG
    found = [box.returns(FORGERIES[name], "f", [3], expected, limits) for expected in (secret, {"expected": secret})]
    test = f"expected = {secret!r}\nassert candidate(3) == expected\nassert all(map(lambda n: f(n) == expected, [3]))"
    found += [box.holds(FORGERIES[name], "f", "", test, limits)]
    assert not [each for each in found if each.passed]
    assert secret not in str(found)


@tiers
def test_a_right_program_passes_the_same_questions(tier: str) -> None:
    box, program = Sandbox(tier), "def f(x): return f'SECRET-{x}'"
    assert box.returns(program, "f", [3], "SECRET-3", LONG).passed
    assert box.holds(program, "f", "", "assert candidate(3) == 'SECRET-3'\nassert all(map(f, [3]))", LONG).passed


@tiers
def test_an_exception_does_not_end_a_test_early(tier: str) -> None:
    test = "assert all(map(lambda n: candidate(n) == n, [1, 2]))"
    assert not Sandbox(tier).holds("def f(x): raise StopIteration", "f", "", test, LONG).passed


def prevented(tier: str) -> list[str]:
    """The escapes that a tier prevents on this machine."""
    return [name for name in ESCAPES if name[0] in ("BFI" if tier == "isolated" else "BF")]


@pytest.mark.parametrize(("tier", "name"), [(tier, name) for tier in TIERS for name in prevented(tier)])
def test_no_escape(name: str, tier: str, victim: dict[str, Any]) -> None:
    code, output, error = Sandbox(tier).run(ESCAPES[name].format(**victim), "", LONG)
    assert "ESCAPED" not in output, (code, output, error)
    assert "SyntaxError" not in error
    assert code is not None
    assert psutil.pid_exists(victim["pid"])


def test_the_escapes_succeed_without_a_sandbox(victim: dict[str, Any]) -> None:
    harmless = [name for name in ESCAPES if name[0] in "IF" and name not in CHANGING]
    harmless += ["B connect to loopback", "B a Unix socket", "B an abstract socket", "B listen", "B netlink"]
    harmless += [
        name for name in ESCAPES if "datagram" in name or name.startswith(("B a raw", "B a session", "B a lease"))
    ]
    harmless += ["B memory that others may read", "B outlive its guard", "B watch files", "B a group of its own"]
    harmless += ["B the environment", "B the environment in C", "B read a process", "B another namespace"]
    for name in harmless:
        program = ESCAPES[name].format(**victim)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=victim["folder"])
        assert "ESCAPED" in done.stdout, (name, done)
        (victim["folder"] / "link").unlink(missing_ok=True)


CHANGING = {
    *("F write to the root", "F write to Python", "F write to /dev", "B execute", "F rename its folder"),
    *("F remove a folder", "I the user of the caller", "I the system's log", "F the memory of the machine"),
    *("F installed data", "F installed packages", "I a pid of the machine", "F names of other programs' files"),
}
"""Escapes that would change this machine, or succeed on some machines only."""


@tiers
@pytest.mark.parametrize("name", EXHAUSTION)
def test_every_program_ends_and_leaves_nothing(name: str, tier: str) -> None:
    program, verdict = EXHAUSTION[name]
    limits = SHORT if "timeout" in verdict else LONG
    began, outcome = time.monotonic(), Sandbox(tier).prints(program, "", "1", limits)
    assert outcome.verdict in ([verdict] if isinstance(verdict, str) else verdict), outcome
    assert len(outcome.output) <= 1 << 20
    assert time.monotonic() - began < 20
    wait_until(lambda: not left(tier))  # a guard ends after its answer


@tiers
def test_a_template_that_was_killed_is_started_again(
    tier: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = runs.template(tier)
    first._process.kill()
    first._process.wait()
    python = tmp_path / "python"  # which needs the variable, as one with a shared library may
    python.write_text(f'#!/bin/sh\n[ "$LD_LIBRARY_PATH" = /some/lib ] && exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/some/lib")
    assert Sandbox(tier).run("print(1)")[1] == "1\n"
