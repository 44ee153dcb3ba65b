"""Test files of `marl-verl sandbox check`: cases of a function, or of a program's standard input and output."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import msgspec

from marl_verl.errors import MarlError, user_error
from marl_verl.files import MOST_DOCUMENT, read_bytes
from marl_verl_sandbox import values
from marl_verl_sandbox.pool import Limits
from marl_verl_sandbox.runs import CORES, Outcome, Sandbox


class Call(msgspec.Struct, forbid_unknown_fields=True):
    """A call of a function, and the value that it must return."""

    args: list[Any]
    expected: Any
    kwargs: dict[str, Any] = {}


class Streams(msgspec.Struct, forbid_unknown_fields=True):
    """Standard input and output of a program."""

    stdin: str
    stdout: str


class Cases(msgspec.Struct, forbid_unknown_fields=True):
    """Tests of one program: calls of the function `entry` (or "Class.method"), or standard inputs and outputs."""

    cases: Sequence[Call] = ()
    entry: str = ""
    stdin_cases: Sequence[Streams] = ()
    timeout: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 5.0  # seconds for each case

    def __post_init__(self) -> None:
        if bool(self.cases) == bool(self.stdin_cases):
            raise MarlError("there must be one case or more, either in 'cases' or in 'stdin_cases'")


def read_cases(path: Path) -> Cases:
    """Read a JSON file `{"entry": ..., "cases": [...], "timeout": 5}` or `{"stdin_cases": [...], "timeout": 5}`.
    MarlError: it is not such a file; the message names the file and the field."""
    where = f"test file '{path}'"
    with user_error(f"{where} cannot be read as JSON", OSError, ValueError, RecursionError):
        data = json.loads(read_bytes(path, MOST_DOCUMENT, follow=True).decode("utf-8-sig"))
    with user_error(where, MarlError, msgspec.ValidationError, TypeError):
        tests = msgspec.convert(data, Cases)
        for case in tests.cases:
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
