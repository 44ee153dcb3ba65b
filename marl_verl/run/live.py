"""The live view of a run on a terminal: what is being done and how long it usually takes, and how the team learns."""

from __future__ import annotations

import contextlib
import itertools
import re
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from marl_verl.errors import MarlError
from marl_verl.files import read_json

SECONDS = {  # phase of a step -> its metric in seconds/
    "sampling": "gen",
    "computing advantages": "advantage",
    "updating": "update",
    "syncing weights": "sync",
    "writing a checkpoint": "save_checkpoint",
    "writing a snapshot": "snapshot",
    "validating": "testing",
}
FIRST = "first validation"
"""The phase of the start that lasts until the first step begins."""

EARLIER = 5
"""Number of earlier runs whose median is the usual duration of a phase of the start."""

BLOCKS = "▁▂▃▄▅▆▇█"
LONGEST = 40  # characters of the curve
BAR = 30  # characters of a bar


class View:
    """What rich draws of a run, from its events; `text` is the line of the current activity.

    `usual`: phase of the start -> its usual seconds.
    """

    def __init__(self) -> None:
        self.text, self.usual = "", dict[str, float]()
        self._spinners = Spinner("dots"), Spinner("line")  # with Unicode, without
        self._since = 0.0
        self._step, self._steps = 0, 0
        self._durations = list[tuple[float, float]]()  # of the last steps; and until the next one ended
        self._ended: float | None = None  # when the last step ended
        self._success, self._held_out = list[float](), ""
        self._values: Mapping[str, float] = {}
        self._waiting: list[str] = []
        self._lock = threading.Lock()  # rich draws in another thread

    def say(self, text: str) -> None:
        """Show another activity."""
        with self._lock:
            self.text, self._since = text, time.monotonic()

    def event(self, event: Mapping[str, Any]) -> None:
        """Take in an event of the run's process; others than these are ignored."""
        kind = event["event"]
        if kind == "phase":
            self.say(event["name"])
        phases = event.get("phases") if kind == "doing" else None
        if phases and (self.text, phases) != (FIRST, ["validating"]):
            self.say(" and ".join(dict.fromkeys(phases)))
        with self._lock:
            if kind == "awaited":
                waiting = [each for each in self._waiting if each != event["what"]]
                self._waiting = waiting if event["ready"] else [*waiting, event["what"]]
            elif kind == "validation":
                self._held_out = f"   held-out {event['metrics']['validation/success']:.1%} (step {event['step']})"
            elif kind == "step":
                self._values, self._step, self._steps = event["metrics"], event["step"], event["steps"]
                now = time.monotonic()
                passed = self._values["seconds/step"] if self._ended is None else now - self._ended
                self._durations = [*self._durations[-19:], (self._values["seconds/step"], passed)]
                self._ended = now
                self._success.append(self._values["train/success"])

    def left(self) -> tuple[float, float]:
        """(mean seconds of the last steps, seconds until the last step, with validations and checkpoints between)."""
        seconds, passed = map(statistics.fmean, zip(*self._durations, strict=True))
        return seconds, passed * (self._steps - self._step)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with self._lock:
            if self._durations:
                yield from self._progress(options.ascii_only)
            yield self._activity(options.ascii_only)
            if self._waiting:
                yield _wrapped(f"  waiting for {', '.join(self._waiting)}")

    def _activity(self, ascii_only: bool) -> Table:
        """The current activity, how long it has taken, and how long it usually takes."""
        done, expected = time.monotonic() - self._since, self._expected()
        row: list[Any] = [self._spinners[ascii_only], Text(self.text)]
        if expected is not None:
            row += [ProgressBar(expected, min(done, expected), BAR), Text(f"{done:.0f} of about {expected:.0f} s")]
        elif done >= 1:
            row.append(Text(f"{done:.0f} s"))
        return _line(row)

    def _expected(self) -> float | None:
        last = self._values.get(f"seconds/{SECONDS.get(self.text)}")
        usual = self.usual.get(self.text) if last is None else last
        return usual if usual and usual >= 1 else None

    def _progress(self, ascii_only: bool) -> RenderResult:
        """Step and time left; success as a curve; rewards; tokens and memory."""
        values, (seconds, left) = self._values, self.left()
        steps = Text(f"step {self._step}/{self._steps}")
        yield _line(
            [steps, ProgressBar(self._steps, self._step, BAR), Text(f"{seconds:.1f} s/step  {duration(left)} left")]
        )
        curve = "" if ascii_only else sparkline(self._success[-LONGEST:]) + "  "
        yield _wrapped(f"team success  {curve}{self._success[-1]:.1%}{self._held_out}")
        yield _wrapped(f"reward  {rewards(values)}")
        memory, peaks = psutil.virtual_memory(), [v for k, v in values.items() if k.endswith("max_memory_allocated_gb")]
        peak = f", training processes at most {max(peaks):.1f} GiB" if peaks else ""
        tokens = values.get("train/tokens", 0.0) / max(values["seconds/step"], 1e-9)
        used = f"{(memory.total - memory.available) / 2**30:.1f} of {memory.total / 2**30:.0f} GiB"
        yield _wrapped(f"{tokens:.0f} tokens/s  memory {used}{peak}")


def _wrapped(text: str) -> Text:
    """Lines as wide as the terminal; a console that leaves long lines to the terminal would cut them here."""
    return Text(text, no_wrap=False, overflow="fold")


def _line(row: Sequence[Any]) -> Table:
    line = Table.grid(padding=(0, 1))
    line.add_row(*row)
    return line


def rewards(values: Mapping[str, float]) -> str:
    """The mean reward of each agent, and the number of failed episodes if there are any."""
    found = {match[1]: values[match[0]] for match in map(re.compile("agent/([^/]+)/reward").fullmatch, values) if match}
    shown = "  ".join(f"{agent} {found[agent]:.2f}" for agent in sorted(found))
    failed = values.get("train/failed_episodes", 0.0)
    return f"{shown}  {failed:.0f} episodes failed" if failed else shown


def sparkline(shares: Sequence[float]) -> str:
    """Shares from 0 to 1 as characters of eight heights."""
    return "".join(BLOCKS[round(min(max(share, 0.0), 1.0) * (len(BLOCKS) - 1))] for share in shares)


def duration(seconds: float) -> str:
    """E.g. "1:05"."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


def usual(folder: Path, policies: Sequence[str]) -> dict[str, float]:
    """Phase of the start -> its median seconds in the latest runs of these policies in a run directory's folder."""
    found: dict[str, list[float]] = {}
    paths = sorted(folder.resolve().parent.glob("*/timing.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    earlier = [timing for path in paths if sorted((timing := _timing(path)).get("policies", {})) == sorted(policies)]
    for timing in earlier[:EARLIER]:
        end_of_validation = {"": timing["validated"]} if "validated" in timing else {}
        begun = sorted({**timing.get("phases", {}), **end_of_validation}.items(), key=lambda phase: float(phase[1]))
        for (name, start), (_, end) in itertools.pairwise(begun):
            found.setdefault(name, []).append(end - start)
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def _timing(path: Path) -> dict[str, Any]:
    with contextlib.suppress(MarlError):
        found = read_json(path)
        return found if isinstance(found, dict) else {}
    return {}
