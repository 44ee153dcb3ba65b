"""`marl-verl sandbox check PROGRAM.py --tests TESTS.json [--tier T] [--json]`: score one program."""

import argparse
import json
from pathlib import Path

from marl_verl.errors import user_error
from marl_verl.files import read_bytes
from marl_verl.run.terminal import harmless, show
from marl_verl_sandbox import TIERS, Sandbox, SandboxError, check, read_cases

MOST_PROGRAM = 8 << 20
EXAMPLES = """
TESTS.json has calls of a function, or standard input and output (docs/sandbox.md):

  {"entry": "add", "cases": [{"args": [1, 2], "expected": 3}], "timeout": 5}
  {"stdin_cases": [{"stdin": "1 2\\n", "stdout": "3\\n"}], "timeout": 5}

The exit code is 0 if all cases pass, 1 if not, and 2 if a file cannot be read or this machine does not give the tier.

  marl-verl sandbox check program.py --tests tests.json --tier isolated
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Run a program on tests in the sandbox."
    parser.add_argument("action", choices=["check"], metavar="check", help="the only action")
    parser.add_argument("program", type=Path, metavar="PROGRAM.py", help="a Python program")
    parser.add_argument("--tests", type=Path, required=True, metavar="TESTS.json", help="its tests")
    tiers = ", ".join(TIERS)
    parser.add_argument("--tier", default="auto", metavar="T", help=f"{tiers}:URL (default: the strongest available)")
    parser.add_argument("--json", action="store_true", help="print a JSON object")


def run(options: argparse.Namespace) -> int:
    with user_error(f"program '{options.program}' cannot be read as text", OSError, UnicodeDecodeError):
        program = read_bytes(options.program, MOST_PROGRAM, follow=True).decode("utf-8-sig")
    tests, sandbox = read_cases(options.tests), Sandbox(options.tier)
    with user_error("", SandboxError):
        outcomes = check(program, tests, sandbox)
    passed = sum(outcome.passed for outcome in outcomes)
    cases = [{"passed": case.passed, "verdict": case.verdict, "reason": case.error} for case in outcomes]
    if options.json:
        show(json.dumps({"passed": passed, "total": len(cases), "tier": sandbox.tier, "cases": cases}, indent=2))
    else:
        lines = [f"case {n}: {case['verdict']} {case['reason']}".strip() for n, case in enumerate(cases, start=1)]
        show(harmless("\n".join([*lines, f"{passed} of {len(cases)} passed, tier {sandbox.tier}"])))
    return 0 if passed == len(cases) else 1
