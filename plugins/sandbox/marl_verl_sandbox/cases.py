"""Test files of `marl-verl sandbox check`: cases of a function, or of a program's standard input and output."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_verl.errors import MarlError, nearest, shown
from marl_verl.files import MOST_DOCUMENT, read_bytes
from marl_verl_sandbox import values
from marl_verl_sandbox.pool import Limits
from marl_verl_sandbox.runs import CORES, Outcome, Sandbox

SECONDS = 5.0
FUNCTION, STREAMS = {"args", "kwargs", "expected"}, {"stdin", "stdout"}


@dataclass(frozen=True)
class Cases:
    """Tests of one program.

    Attributes:
        cases: {"args", "expected", "kwargs"} of calls of the function `entry`; or {"stdin", "stdout"}, if it is None.
        entry: name of a function, or "Class.method".
        seconds: limit of each case.
    """

    cases: list[dict[str, Any]]
    entry: str | None = None
    seconds: float = SECONDS


def read_cases(path: Path) -> Cases:
    """Read a JSON file `{"entry": ..., "cases": [...], "timeout": 5}` or `{"stdin_cases": [...], "timeout": 5}`.

    Raises:
        MarlError: it is not such a file; the message names the file and the field.
    """
    where = f"test file '{path}'"
    try:
        data = json.loads(read_bytes(path, MOST_DOCUMENT, follow=True).decode("utf-8-sig"))
    except OSError as error:
        raise MarlError(f"cannot read {where}: {error.strerror}") from error
    except RecursionError as error:
        raise MarlError(f"{where} is nested too deeply") from error
    except ValueError as error:  # also UnicodeDecodeError
        raise MarlError(f"{where} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise MarlError(f"{where} must be an object, got {shown(data)}")
    key = "stdin_cases" if "stdin_cases" in data else "cases"
    _known(data, {key, "timeout"} | ({"entry"} if key == "cases" else set()), where)
    cases, seconds, entry = data.get(key), data.get("timeout", SECONDS), data.get("entry")
    if not isinstance(cases, list) or not cases:
        raise MarlError(f"{where} must have a list '{key}' with one case or more, got {shown(cases)}")
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds <= 3600:
        raise MarlError(f"{where}: 'timeout' must be seconds above 0 and at most 3600, got {shown(seconds)}")
    if key == "cases" and (not isinstance(entry, str) or not all(map(str.isidentifier, entry.split(".")))):
        raise MarlError(f"{where}: 'entry' must be the name of a function or 'Class.method', got {shown(entry)}")
    for number, case in enumerate(cases, start=1):
        _case(case, f"{where}, {key} {number}", FUNCTION if key == "cases" else STREAMS)
    return Cases(cases, entry, seconds)


def _case(case: Any, where: str, names: set[str]) -> None:
    if not isinstance(case, dict):
        raise MarlError(f"{where} must be an object, got {shown(case)}")
    _known(case, names, where)
    required: dict[str, type] = (
        {"args": list, "expected": object} if names is FUNCTION else {"stdin": str, "stdout": str}
    )
    if "kwargs" in case:
        required["kwargs"] = dict
    for name, kind in required.items():
        if name not in case or not isinstance(case[name], kind):
            what = {"list": "a list", "dict": "an object", "str": "text"}.get(kind.__name__, "a value")
            got = f"got {shown(case[name])}" if name in case else f"it has {', '.join(case) or 'nothing'}"
            raise MarlError(f"{where}: '{name}' must be {what}, {got}")
    try:
        values.to_json([case.get(name) for name in ("args", "kwargs", "expected")])
    except TypeError as error:
        raise MarlError(f"{where}: {error}") from error


def _known(data: dict[str, Any], names: set[str], where: str) -> None:
    for name in data:
        if name not in names:
            raise MarlError(f"{where} has an unknown field '{name}': {nearest(name, names)}")


def check(program: str, tests: Cases, sandbox: Sandbox, megabytes: int = Limits.megabytes) -> list[Outcome]:
    """Run a program on tests, each in a fresh process; return an outcome for each, in order."""
    limits = Limits(tests.seconds, megabytes)

    def one(case: dict[str, Any]) -> Outcome:
        if tests.entry is None:
            return sandbox.prints(program, case["stdin"], case["stdout"], limits)
        return sandbox.returns(program, tests.entry, case["args"], case["expected"], limits, case.get("kwargs"))

    with ThreadPoolExecutor(CORES) as threads:
        return list(threads.map(one, tests.cases))
