"""Programs of `programs.txt`: attacks on the sandbox, and right ones."""

import re
from pathlib import Path

_TEXT = Path(__file__).with_name("programs.txt").read_text(encoding="utf-8")
_PROGRAM = re.compile(r"^### (\w+)(?: ([\w,]+))?: (.*)\n((?:(?!### ).*\n)*)", re.MULTILINE)
_ALL = _PROGRAM.findall(_TEXT)


def _programs(kind: str) -> dict[str, str]:
    """Name -> program."""
    return {name: code.rstrip("\n") for group, _, name, code in _ALL if group == kind}


FORGERIES, ESCAPES, RIGHT, EXHAUSTION = map(_programs, ("FORGERY", "ESCAPE", "RIGHT", "EXHAUSTION"))
VERDICTS = {name: verdicts.split(",") for _, verdicts, name, _ in _ALL if verdicts}
"""Of `EXHAUSTION`."""
