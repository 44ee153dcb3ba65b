"""What compares two answers, by math-verify, in the process of `matcher`."""

import functools


def warm() -> None:
    """Import everything that is imported late."""
    answer("1", r"\frac{1}{2}")


def answer(given: str, truth: str) -> bool:
    """Whether math-verify finds an answer equal to the truth."""
    from math_verify import verify

    return bool(verify(parsed(truth), parsed(given), timeout_seconds=None))


@functools.lru_cache(maxsize=4096)
def parsed(text: str) -> list[object]:
    """math-verify's expressions of an answer. A percent sign is no part of a number: 50% is 50, not 0.5."""
    from math_verify import parse

    text = text.strip().rstrip(".").removesuffix("%").removesuffix("\\")
    return list(parse(f"\\boxed{{{text}}}", parsing_timeout=None))
