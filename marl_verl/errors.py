"""User errors: the message names what is wrong and what to do about it."""

import contextlib
import difflib
import functools
import re
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import ParamSpec

__all__ = ["MarlError", "MarlWarning", "RunError", "check_known", "shown", "user_error"]

P = ParamSpec("P")
PYTHON, LIBRARY = str(Path(traceback.__file__).parent), "site-packages"
RAISED = "marl_verl_line"  # attribute of an exception that another process raised: its `user_line` there
OURS = re.compile(r"marl_verl(?!_file_plugins)")  # modules; those of a plugin file are a user's


class MarlError(Exception):
    """A user error in config, data, plugin or model. The command line prints the message and exits with code 2."""


class MarlWarning(UserWarning):
    """A possible user error that does not stop the command."""


class RunError(Exception):
    """Training or an evaluation failed after it had started. The message has the reason and the path of the `log`, the
    output of all processes. `mistake`: the cause is a user error (exit code 2, else 1)."""

    def __init__(self, reason: str, log: Path, mistake: bool) -> None:
        super().__init__(f"{reason} (log: {log})")
        self.log, self.mistake = log, mistake


def check(problems: Callable[P, Iterator[str]]) -> Callable[P, None]:
    """Decorate a generator of problems: the function raises a MarlError with the first one, if there is one."""

    @functools.wraps(problems)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        for problem in problems(*args, **kwargs):
            raise MarlError(problem)

    return checked


@check
def check_returned(value: object, kind: type, label: str) -> Iterator[str]:
    """MarlError unless a part returned a `kind`; `label`: "`X.sample` must return a Sample"."""
    if not isinstance(value, kind):
        yield f"{label}, it returned {shown(value)}"


@contextlib.contextmanager
def user_error(label: str, *kinds: type[BaseException], line: bool = False) -> Iterator[None]:
    """Raise exceptions of these kinds (default: MarlError) as MarlError: `label: ` if any, the message (if `line`,
    `with_line`) in one line."""
    kinds = kinds or (MarlError,)
    try:
        yield
    except kinds as error:
        text = with_line(error) if line else str(error)
        raise MarlError(f"{label}{': ' * bool(label)}{' '.join(text.split())}") from error


def shown(value: object, width: int = 60) -> str:
    """A value in an error message, cut to `width` characters."""
    return f"{value!r:.{width}}"


def format_error(error: BaseException) -> str:
    """An exception as text: a MarlError's message, or class and message of any other."""
    return str(error) if isinstance(error, MarlError) else f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def noted(label: str) -> Iterator[None]:
    """Add a note to exceptions, which `after_notes` shows, e.g. "policy 'mover'"."""
    try:
        yield
    except Exception as error:
        error.add_note(label)
        raise


def after_notes(error: BaseException, text: str) -> str:
    """A message after the error's notes of one line (`noted`); not after a traceback of `scoring`."""
    return ": ".join([*(note for note in getattr(error, "__notes__", ()) if "\n" not in note), text])


def with_line(error: BaseException) -> str:
    """An exception as text, with the line `raised_at`, or the last one without it, unless it is a MarlError."""
    frames = [] if isinstance(error, MarlError | SyntaxError) else traceback.extract_tb(error.__traceback__)[-1:]
    last = "".join(f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in frames)
    return format_error(error) + (raised_at(error) or last)


def raised_at(error: BaseException) -> str:
    """The `user_line` that raised an exception, also in another process; "" without one, and of a MarlError."""
    stack = [] if isinstance(error, MarlError) else [*traceback.walk_tb(error.__traceback__)][::-1]
    return str(vars(error).get(RAISED) or user_line(stack))


def user_line(stack: Iterable[tuple[FrameType, int]]) -> str:
    """The first line of a stack, from the innermost, that is not of Python, a library or marl-verl; e.g.
    " (my_team.py, line 12)". "" without one."""
    for frame, line in stack:
        file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
        if not (LIBRARY in file or file.startswith((PYTHON, "<frozen")) or OURS.match(module)):
            return f" ({Path(file).name}, line {line})"
    return ""


def nearest(name: str, valid: Iterable[str]) -> str:
    """The hint at the end of an error about an unknown name: the nearest valid name, or some if none is near."""
    options = sorted(set(valid))
    begun = sorted((option for option in options if name and option.startswith(name)), key=len)
    related = [option for option in options if option[:1] == name[:1] or option in name or name in option]
    alike = difflib.get_close_matches(name, related, n=1, cutoff=0.55)
    close = begun or alike or difflib.get_close_matches(name, options, n=1, cutoff=0.7)
    if close:
        return f"did you mean '{close[0]}'?"
    listed = ", ".join(options[:12]) + ", ..." * (len(options) > 12)
    return f"valid: {listed}" if options else "none is available"


def unknown(kind: str, name: str, valid: Iterable[str]) -> MarlError:
    """The error for a name that is not registered, e.g. `unknown("task", "plan-pth", [...])`."""
    return MarlError(f"unknown {kind} '{name}': {nearest(str(name), valid)}")


def check_known(kind: str, name: str, valid: Collection[str]) -> None:
    """Raise the error `unknown` unless the name is one of `valid`."""
    if name not in valid:
        raise unknown(kind, name, valid)


def missing(what: str, path: Path, there: Iterable[Path]) -> MarlError:
    """The error for a path that does not exist, e.g. `missing("recipe file", path, path.parent.glob("*.yaml"))`."""
    names = {other.name: other for other in there if other != path}
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.6)
    hint = f": did you mean '{names[close[0]]}'?" if close else ". Check the path."
    return MarlError(f"no {what} '{path}'{hint}")


def check_file(what: str, path: Path, pattern: str = "*", folder: str = "give a file in it") -> None:
    """Raise the error `missing`, with the nearest of a pattern in its folder, unless a file is there. `folder`: what to
    do with a folder."""
    if path.is_dir():
        raise MarlError(f"'{path}' is a folder, not a {what}: {folder}")
    if not path.is_file():
        raise missing(what, path, path.parent.glob(pattern))
