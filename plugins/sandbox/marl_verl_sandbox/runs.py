"""Programs in one tier of the sandbox: run one, call its function, check assertions about it; and the tool of agents.

Expected values stay in this process; the program's process receives inputs and returns plain values.
"""

import asyncio
import contextlib
import functools
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

from marl_verl.errors import MarlError, unknown, user_error
from marl_verl_sandbox import external, values
from marl_verl_sandbox.pool import Limits, Process, template

TIERS = ("limits", "isolated", "external")
AUTO = "auto"
Verdict = Literal["passed", "wrong", "error", "timeout"]

LIMITS = Limits()
SECONDS, MEGABYTES = 5.0, 1024  # of the tool
LONGEST = 2000  # maximum characters of the tool's output; its end is kept
_TRACEBACK = re.compile(r'^Traceback \(most recent call last\)|^  File "', re.MULTILINE)
_FENCED = re.compile(r"^[ \t]*```([^\n`]*)\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)
CORES = len(os.sched_getaffinity(0))
at_once = threading.BoundedSemaphore(CORES)
"""As many programs at once as there are cores, so that a time limit is not spent waiting for a core."""


@dataclass(frozen=True)
class Outcome:
    """Result of a program on one case. "wrong": output or value, or a failed assertion; "error": an exception, or
    another exit code than 0."""

    verdict: Verdict
    output: str = ""  # of the program, or the returned value as text
    error: str = ""  # why it did not pass; for a program, the end of its error output

    @property
    def passed(self) -> bool:
        return self.verdict == "passed"


class Sandbox:
    """One tier: "limits", "isolated", "external:URL" of a Sandbox Fusion server, or "auto", the strongest that this
    machine gives without a server. MarlError: an unknown tier, or one that this machine does not give."""

    def __init__(self, tier: str = AUTO) -> None:
        name, _, self.url = tier.partition(":")
        if name not in (*TIERS, AUTO) or (self.url and name != "external"):
            raise unknown("sandbox tier", tier, (*TIERS, AUTO))
        if name == "external":
            if not self.url.startswith(("http://", "https://")):
                raise MarlError("sandbox tier 'external' needs a server, e.g. external:http://127.0.0.1:8080/run_code")
        elif name == AUTO:
            name = "limits" if unavailable("isolated") else "isolated"
        elif why := unavailable(name):
            raise MarlError(why)
        self.tier = name

    def run(self, program: str, stdin: str = "", limits: Limits = LIMITS) -> tuple[int | None, str, str]:
        """Run a program; return (exit code, minus signal, or None if its time was over; output; error output)."""
        with at_once:
            if self.url:
                return external.run(self.url, program, stdin, limits)
            request = {"kind": "main", "program": program}
            with Process(template(self.tier), limits, request, stdin.encode(errors="surrogatepass")) as process:
                in_time = process.wait()
                code, output, error = process.end()
                return (code if in_time else None), output, error

    def prints(
        self,
        program: str,
        stdin: str,
        stdout: str,
        limits: Limits = LIMITS,
        same: Callable[[str, str], bool] = lambda output, stdout: output.split() == stdout.split(),
        exits: bool = False,
    ) -> Outcome:
        """Whether a program ends with exit code 0, with `exits` in any way but an exception or a signal, and prints
        `stdout`: its words in order, in any white space, or as `same` compares."""
        code, output, error = self.run(program, stdin, limits)
        if code is None:
            return Outcome("timeout", output, f"longer than {limits.seconds:g} s")
        if (code == 0 or (exits and code > 0 and not _TRACEBACK.search(error))) and same(output, stdout):
            return Outcome("passed", output)
        if code:
            return Outcome("error", output, error[-2000:] or ended(code))
        return Outcome("wrong", output, "the output is wrong")

    def returns(
        self,
        program: str,
        entry: str,
        arguments: Sequence[Any],
        expected: Any,
        limits: Limits = LIMITS,
        named: Mapping[str, Any] | None = None,
        numbers: bool = False,
    ) -> Outcome:
        """Whether a program's function returns the expected JSON value (`values.same`, with `numbers`). MarlError: an
        argument is no JSON value, or is nested too deeply."""
        with user_error(f"an argument of '{entry}' cannot be passed on", TypeError):
            call = values.to_json([list(arguments), dict(named or {})])

        def called(process: Any) -> Outcome:
            value = _value(process, call)
            text = _text(value)
            right = values.same(expected, value, numbers)
            return Outcome("passed", text) if right else Outcome("wrong", text, f"returned {text:.200}")

        return self._loaded(program, entry, limits, called)

    def holds(self, program: str, entry: str, setup: str, test: str, limits: Limits = LIMITS) -> Outcome:
        """Whether a test, statements that call the program's function by its name or as `candidate`, raises nothing. It
        runs after the statements of `setup` in a process of its own, which has the expected values; each call is passed
        on by value. So the test sees plain values, and no change of an argument."""
        tier = self.tier if not self.url else Sandbox().tier
        request = {"kind": "judge", "setup": setup, "test": test, "entry": entry}

        def judged(process: Any) -> Outcome:
            with Process(template(tier), limits, request) as judge:
                message = judge.ask()
                while message is not None:
                    kind, *content = values.from_json(message)
                    if kind == "passed":
                        return Outcome("passed")
                    if kind == "raise":
                        return Outcome("wrong", error=": ".join(content)[:220])
                    message = judge.ask(_answer(process, values.to_json(content)))
                raise _Failed(f"the test ended its process: {judge.end()[2][-200:]}")

        return self._loaded(program, entry, limits, judged)

    def _loaded(self, program: str, entry: str, limits: Limits, work: Callable[[Any], Outcome]) -> Outcome:
        """The outcome of `work` with the process of a program that has been loaded."""
        try:
            with at_once, self._session(program, entry, limits) as process:
                _value(process)
                return work(process)
        except _Failed as error:
            return Outcome("error", error=str(error))
        except values.TooLarge as error:
            return Outcome("error", error=f"a value is {error}")
        except TimeoutError:
            return Outcome("timeout", error=f"longer than {limits.seconds:g} s")

    def _session(self, program: str, entry: str, limits: Limits) -> AbstractContextManager[Any]:
        if self.url:
            return contextlib.nullcontext(external.ExternalSession(self.url, program, entry, limits))
        return Process(template(self.tier), limits, {"kind": "serve", "program": program, "entry": entry})


class _Failed(Exception):
    """A program has no value; the message is why."""


def _answer(process: Any, message: bytes | None) -> bytes:
    """What a program's process answers. _Failed if it has ended."""
    answer: bytes | None = process.ask(message)
    if answer is None:
        raise _Failed(f"the program ended its process: {ended(process.end()[0])}")
    return answer


def _value(process: Any, message: bytes | None = None) -> Any:
    """The value that a program's process answers. _Failed if it answers none."""
    answer = _answer(process, message)
    with contextlib.suppress(ValueError):
        match values.from_json(answer):
            case ["value", value]:
                return value
            case ["raise", kind, text]:
                raise _Failed(f"{kind}: {text}"[:220])
    raise _Failed("the program's process sent no value")


def ended(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def _text(value: Any) -> str:
    try:
        return repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits; deep nesting
        return f"a large {type(value).__name__}"


def unavailable(tier: str) -> str:
    """Why this machine does not give a tier; empty if it does. Starts the tier's template."""
    try:
        template(tier)
    except MarlError as error:
        return str(error)
    return ""


_tier = AUTO


def check(tier: str) -> None:
    """MarlError if this machine does not give the tier."""
    if tier != AUTO:  # whatever there is
        Sandbox(str(tier))


def use(tier: str | None) -> None:
    """Set the tier of this process, None: auto. MarlError if it is not available."""
    global _tier
    _tier = tier or AUTO
    current.cache_clear()
    if _tier != AUTO:  # a run without code of models starts nothing
        current()


@functools.cache
def current() -> Sandbox:
    """The sandbox of this process: that of `use`, or the strongest that the machine gives."""
    return Sandbox(_tier)


def used() -> str | None:
    """The tier in which this process runs programs; None if it has run none with `current`."""
    return current().tier if current.cache_info().currsize else None


def program_in(text: str) -> str:
    """The last fenced block of Python, else of anything, without its fences; empty without one that is closed."""
    blocks = _FENCED.findall(text)
    python = [block for block in blocks if block[0].strip().lower() in ("python", "python3", "py")]
    return str((python or blocks)[-1][1]).rstrip() if blocks else ""


async def ran(code: str, seconds: float = SECONDS) -> tuple[str, str]:
    """Run a Python program; return what it prints, and the last line of its error, empty unless it fails."""
    status, output, errors = await asyncio.to_thread(current().run, code, "", Limits(seconds, MEGABYTES))
    if status is None:
        return "", f"TimeoutError: the program took longer than {seconds:g} s"
    error = (errors.strip().splitlines() or [f"exit code {status}"])[-1][-LONGEST:] if status else ""
    return output.strip()[-LONGEST:], error


async def run_program(agent: Any, text: str) -> tuple[str, str]:
    """Run the program of an agent's text, as a call of the agent; return what it prints, empty if it fails, and what to
    show of that, with the last line of its error."""
    if not (program := program_in(text)):
        return "", "(no program)"
    output, error = await agent.call(ran, program)
    return "" if error else output, f"{output}\n{error}".strip()


async def run_python(code: str, seconds: float = SECONDS, strict: bool = False) -> str:
    """Run a Python program and return what it prints; if it fails, with the last line of the error.

    Args:
        code: the program; it must print its results.
        seconds: time limit.
        strict: raise ValueError with that line instead.
    """
    output, error = await ran(code, seconds)
    if error and strict:
        raise ValueError(error)
    return "\n".join(filter(None, (output, error)))
