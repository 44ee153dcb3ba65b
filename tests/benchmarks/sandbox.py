"""Milliseconds a program in each tier of the sandbox, compared with a fresh Python each."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from marl_verl_sandbox import Limits, Sandbox, unavailable
from marl_verl_sandbox.runs import CORES

PROGRAM = "def add(a, b):\n    return a + b\n"


def fresh(number: int) -> bool:
    """Run a program in a new interpreter, without any limit."""
    code = f"import json\n{PROGRAM}print(json.dumps(add({number}, 1)))"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    return done.stdout == f"{number + 1}\n"


def milliseconds(run: Callable[[int], bool], count: int) -> float:
    """Wall-clock time of a program, as many at once as there are cores."""
    with ThreadPoolExecutor(CORES) as threads:
        assert run(0)  # starts what stays warm
        began = time.perf_counter()
        assert all(threads.map(run, range(count)))
        return (time.perf_counter() - began) / count * 1000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=int, default=200)
    count = parser.parse_args().programs
    slow = milliseconds(fresh, count)
    print(f"fresh Python   {slow:6.1f} ms a program, {CORES} cores")
    for tier in ("limits", "isolated"):
        if not unavailable(tier):
            box = Sandbox(tier)
            found = milliseconds(
                lambda n, box=box: box.returns(PROGRAM, "add", [n, 1], n + 1, Limits(30)).passed, count
            )  # type: ignore[misc]
            print(f"{tier:<14} {found:6.1f} ms a program: {found / slow:.2f} of a fresh Python")


if __name__ == "__main__":
    main()
