"""Whether two final answers are equal, by math-verify (a computer algebra system), within limits.

math-verify works in a process of its own (`match_child`), because an answer such as `9^{9^9}` would keep sympy busy for
ever, and its own time limit needs the main thread. The process starts with the first comparison, stays warm, and ends
with this one. An answer that needs longer than `SECONDS`, or more than 4 GiB, is not equal.
"""

import asyncio
import functools
import re
from pathlib import Path

from marl_verl_sandbox import Limited

SECONDS = 3.0
LONGEST = 1000
"""Maximum characters of an answer; a longer one is equal only to itself."""

_COMPARE = Limited(Path(__file__).with_name("match_child.py"), "math-verify")
_INTEGER = re.compile(r"-?\d{1,18}")


async def same(answer: str, truth: str) -> bool:
    """Whether an answer is equal to the truth, without blocking the event loop."""
    answer, truth = answer.strip(), truth.strip()
    if not answer or not truth:
        return False
    if answer == truth:
        return True
    if len(answer) > LONGEST or len(truth) > LONGEST:
        return False
    if _INTEGER.fullmatch(answer) and _INTEGER.fullmatch(truth):  # most answers, most of them wrong
        return int(answer) == int(truth)
    return await asyncio.to_thread(_compared, answer, truth)


@functools.lru_cache(maxsize=1 << 16)
def _compared(answer: str, truth: str) -> bool:
    return _COMPARE.call(answer, truth, seconds=SECONDS) is True
