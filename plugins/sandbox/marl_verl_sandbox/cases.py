"""Test files of `marl-verl sandbox check`: cases of a function, or of a program's standard input and output."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from pathlib import Path
from typing import Any

from marl_verl.errors import MarlError, user_error
from marl_verl.files import MOST_DOCUMENT, read_bytes
from marl_verl.options import Options, build
from marl_verl_sandbox import values
from marl_verl_sandbox.pool import Limits, Seconds
from marl_verl_sandbox.runs import CORES, Outcome, Sandbox


class Call(Options):
    """A call of a function, and the value that it must return."""

    args: list[Any]
    expected: Any
    kwargs: dict[str, Any] = field(default_factory=dict)


class Streams(Options):
    """Standard input and output of a program."""

    stdin: str
    stdout: str


class Cases(Options):
    """Tests of one program.

    Attributes:
        cases: calls of the function `entry`.
        entry: name of a function, or "Class.method".
        stdin_cases: standard inputs and outputs, instead of calls.
        timeout: seconds for each case.
    """

    cases: Sequence[Call] = ()
    entry: str = ""
    stdin_cases: Sequence[Streams] = ()
    timeout: Seconds = 5.0

    def __post_init__(self) -> None:
        if bool(self.cases) == bool(self.stdin_cases):
            raise MarlError("there must be one case or more, either in 'cases' or in 'stdin_cases'")


def read_cases(path: Path) -> Cases:
    """Read a JSON file `{"entry": ..., "cases": [...], "timeout": 5}` or `{"stdin_cases": [...], "timeout": 5}`.
    MarlError: it is not such a file; the message names the file and the field."""
    where = f"test file '{path}'"
    with user_error(f"{where} cannot be read as JSON", OSError, ValueError, RecursionError):
        data = json.loads(read_bytes(path, MOST_DOCUMENT, follow=True).decode("utf-8-sig"))
    tests = build(Cases, data, where)
    for name, kind in (("cases", Call), ("stdin_cases", Streams)):
        cases = [build(kind, case, f"{where}, {name} {i}") for i, case in enumerate(getattr(tests, name), start=1)]
        setattr(tests, name, cases)
    for case in tests.cases:
        with user_error(where, TypeError):
            values.to_json([case.args, case.kwargs, case.expected])
    return tests


def check(program: str, tests: Cases, sandbox: Sandbox, megabytes: int = Limits.megabytes) -> list[Outcome]:
    """Run a program on tests, each in a fresh process; return an outcome for each, in order."""
    limits = Limits(tests.timeout, megabytes)

    def run(case: Call | Streams) -> Outcome:
        if isinstance(case, Streams):
            return sandbox.prints(program, case.stdin, case.stdout, limits)
        return sandbox.returns(program, tests.entry, case.args, case.expected, limits, case.kwargs)

    with ThreadPoolExecutor(CORES) as threads:
        return list(threads.map(run, tests.cases or tests.stdin_cases))
