"""The one way a user's mistake is told: a sentence that names the thing and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

__all__ = ["MarlError", "missing", "nearest", "told", "unknown"]


class MarlError(Exception):
    """A mistake in config, data, plugin or model. The command line prints it and exits with 2."""


def told(error: BaseException) -> str:
    """Any exception in a sentence: a mistake as it says it, another one with its class."""
    return str(error) if isinstance(error, MarlError) else f"{type(error).__name__}: {error}"


def nearest(name: str, valid: Iterable[str]) -> str:
    """A hint that ends the sentence about an unknown name: the nearest valid one, or all of them if none is near."""
    options = sorted(set(valid))
    begun = sorted((option for option in options if name and option.startswith(name)), key=len)
    close = begun or difflib.get_close_matches(name, options, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"valid: {', '.join(options)}" if options else "there are none"


def unknown(kind: str, name: str, valid: Iterable[str]) -> MarlError:
    """The error for a name that is not registered, e.g. `unknown("task", "plan-pth", [...])`."""
    return MarlError(f"unknown {kind} '{name}': {nearest(str(name), valid)}")


def missing(what: str, path: Path, there: Iterable[Path]) -> MarlError:
    """The error for a path that does not exist, e.g. `missing("recipe file", path, path.parent.glob("*.yaml"))`."""
    close = difflib.get_close_matches(str(path), [str(other) for other in there], n=1, cutoff=0.5)
    return MarlError(f"no {what} '{path}'" + (f": did you mean '{close[0]}'?" if close else ""))
