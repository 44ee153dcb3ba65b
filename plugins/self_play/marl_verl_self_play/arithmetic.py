"""Arithmetic problems: digits joined by + or -, such as "3 + 4 - 2", whose result is computed."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from marl_verl.errors import MarlError
from marl_verl.tasks import held_out

SIGNS = ("+", "-")
HELD_OUT = 10  # one problem in ten
TRIES = 10_000  # draws without a problem of the split after which there is none
PROBLEM = re.compile(r"\s*\d(\s*[+-]\s*\d)+\s*")
NUMBER = re.compile(r"\s*[+-]?\d+\s*")


def parsed(text: str) -> list[str] | None:
    """Digits and signs of a problem; None if the text is not one."""
    return re.findall(r"[\d+-]", text) if PROBLEM.fullmatch(text) else None


def result(parts: Sequence[str]) -> int:
    """The result of a problem, given as its digits and signs."""
    pairs = zip(("+", *parts[1::2]), parts[::2], strict=True)
    return sum(-int(digit) if sign == "-" else int(digit) for sign, digit in pairs)


def number(text: str) -> int | None:
    """The whole number that a text is; None if it is not one."""
    return int(text) if NUMBER.fullmatch(text) else None


def reserved(parts: Sequence[str]) -> bool:
    """Whether a problem belongs to the test split, so that no agent may propose it."""
    return held_out(" ".join(parts), HELD_OUT)


def drawn(rng: random.Random, terms: int, largest: int, test: bool = False) -> list[str]:
    """Digits (to `largest`) and signs of a random problem of `terms` digits of one split. MarlError if it has none."""
    for _ in range(TRIES):
        parts = [str(rng.randint(0, largest))]
        for _ in range(terms - 1):
            parts += [rng.choice(SIGNS), str(rng.randint(0, largest))]
        if reserved(parts) == test:
            return parts
    raise MarlError(f"proposed-arithmetic: no test problem of {terms} digits up to {largest}: set a larger 'largest'")
