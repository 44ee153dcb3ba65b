"""`marl-verl sandbox check PROGRAM.py --tests TESTS.json [--tier T] [--json]`: score one program."""

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import msgspec

from marl_verl.errors import MarlError, user_error
from marl_verl.run.terminal import harmless, show
from marl_verl_sandbox import TIERS, Limits, Outcome, Sandbox, SandboxError, values
from marl_verl_sandbox.runs import CORES

EXAMPLES = """
TESTS.json has calls of a function, or standard input and output (docs/sandbox.md):

  {"entry": "add", "cases": [{"args": [1, 2], "expected": 3}], "timeout": 5}
  {"stdin_cases": [{"stdin": "1 2\\n", "stdout": "3\\n"}], "timeout": 5}

The exit code is 0 if all cases pass, 1 if not, and 2 if a file cannot be read or this machine does not give the tier.

  marl-verl sandbox check program.py --tests tests.json --tier isolated
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["check"], metavar="check", help="the only action")
    parser.add_argument("program", type=Path, metavar="PROGRAM.py", help="a Python program")
    parser.add_argument("--tests", type=Path, required=True, metavar="TESTS.json", help="its tests")
    tiers = ", ".join(TIERS)
    parser.add_argument("--tier", default="auto", metavar="T", help=f"{tiers}:URL (default: the strongest available)")
    parser.add_argument("--json", action="store_true", help="print a JSON object")


def run(options: argparse.Namespace) -> int:
    with user_error(f"program '{options.program}' cannot be read as text", OSError, UnicodeDecodeError):
        program = options.program.read_text(encoding="utf-8-sig")
    tests, sandbox = read_cases(options.tests), Sandbox(options.tier)
    limits = Limits(tests.timeout)

    def run_case(case: Call | Streams) -> Outcome:
        if isinstance(case, Streams):
            return sandbox.prints(program, case.stdin, case.stdout, limits)
        return sandbox.returns(program, tests.entry, case.args, case.expected, limits, case.kwargs)

    with user_error("", SandboxError), ThreadPoolExecutor(CORES) as threads:
        outcomes = list(threads.map(run_case, tests.cases or tests.stdin_cases))
    passed = sum(outcome.passed for outcome in outcomes)
    cases = [{"passed": case.passed, "verdict": case.verdict, "reason": case.error} for case in outcomes]
    if options.json:
        show(json.dumps({"passed": passed, "total": len(cases), "tier": sandbox.tier, "cases": cases}, indent=2))
    else:
        lines = [f"case {n}: {case['verdict']} {case['reason']}".strip() for n, case in enumerate(cases, start=1)]
        show(harmless("\n".join([*lines, f"{passed} of {len(cases)} passed, tier {sandbox.tier}"])))
    return 0 if passed == len(cases) else 1


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
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    with user_error(where, MarlError, msgspec.ValidationError, TypeError):
        tests = msgspec.convert(data, Cases)
        for case in tests.cases:
            values.to_json([case.args, case.kwargs, case.expected])
    return tests
