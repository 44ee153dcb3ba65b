"""Child process that runs tests: standard library only, called as `python -I run_tests_child.py REPLY` by `run_tests`.

It writes one line per test to the file REPLY, [passed, exception], as soon as the test has ended.
"""

from __future__ import annotations

import functools
import json
import resource
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class TooLong(BaseException):
    """A test took too long. A BaseException, so that a program with `except Exception` does not catch it."""


def main() -> None:
    given = json.loads(sys.stdin.read())
    with open(sys.argv[1], "w", encoding="utf-8") as reply:
        limit(given)
        run(given, lambda passed, message: print(json.dumps([passed, message]), file=reply, flush=True))


def limit(given: dict[str, Any]) -> None:
    """Limit processor time, address space, file size, core dumps and new processes (the last not for root)."""
    seconds = int(given["seconds"]) + 1
    for what, most in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, given["bytes"]),
        (resource.RLIMIT_FSIZE, 1 << 20),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
    ):
        resource.setrlimit(what, (most, most))


def run(given: dict[str, Any], tell: Callable[[bool, str], None]) -> None:
    """Load the program, then run each test."""
    names: dict[str, Any] = {"__name__": "answer"}
    message = attempt(functools.partial(execute, given["program"], names), given["test_seconds"])
    if message is None and given["entry"] not in names:
        message = f"NameError: it has no '{given['entry']}'"
    if message is None:
        names["candidate"] = names[given["entry"]]
        message = attempt(functools.partial(execute, given["setup"], names), given["test_seconds"])
    for test in given["tests"]:
        if message is not None:
            tell(False, message)
        else:
            raised = attempt(functools.partial(execute, test, names), given["test_seconds"])
            tell(raised is None, raised or "")


def execute(code: str, names: dict[str, Any]) -> None:
    """Execute code in the namespace `names`."""
    exec(compile(code, "<answer>", "exec", dont_inherit=True), names)


def attempt(work: Callable[[], None], seconds: float) -> str | None:
    """Call `work` with a time limit. Returns its exception on one line, None without one."""

    def ring(signum: int, frame: FrameType | None) -> None:
        raise TooLong

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        work()
    except TooLong:
        return f"longer than {seconds:g} s"
    except BaseException as error:  # noqa: BLE001 - any exception of the program, also SystemExit
        return f"{type(error).__name__}: {error}".splitlines()[0][:200]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return None


if __name__ == "__main__":
    main()
