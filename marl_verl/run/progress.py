"""Progress output of a run: a live view on a terminal, occasional lines elsewhere."""

import contextlib
import io
import json
import re
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from marl_verl.errors import MarlError
from marl_verl.run.parent import how_to_continue
from marl_verl.run.terminal import discard, unwritable

QUIET_SECONDS = 10.0  # minimum time between progress lines without a terminal
BLOCKS = "▁▂▃▄▅▆▇█"
LONGEST, BAR = 40, 30  # characters of the curve, and of the bar

Event = dict[str, Any]
"""{"event": "phase" | "started" | "step" | "validation" | "playing" | "terminal" | ..., ...}."""


class View:
    """What rich draws of a run, from its events; `text` is the line of the current activity."""

    def __init__(self) -> None:
        self.text = ""
        self._spinner, self._since = Spinner("dots"), 0.0
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

    def event(self, event: Event) -> None:
        """Take in an event of the run's process; others than these are ignored."""
        kind = event["event"]
        if kind == "phase":
            self.say(event["name"])
        elif kind == "doing" and event.get("phases"):
            self.say(" and ".join(dict.fromkeys(event["phases"])))
        with self._lock:
            if kind == "awaited":
                waiting = [name for name in self._waiting if name != event["what"]]
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
                yield from self._progress()
            done = time.monotonic() - self._since
            yield _line(self._spinner, self.text, f"{done:.0f} s" if done >= 1 else "")
            if self._waiting:
                yield _wrapped(f"  waiting for {', '.join(self._waiting)}")

    def _progress(self) -> RenderResult:
        seconds, left = self.left()
        bar = ProgressBar(self._steps, self._step, BAR)
        yield _line(f"step {self._step}/{self._steps}", bar, f"{seconds:.1f} s/step  {duration(left)} left")
        curve = "".join(BLOCKS[round(success * (len(BLOCKS) - 1))] for success in self._success[-LONGEST:])
        yield _wrapped(f"team success  {curve}  {self._success[-1]:.1%}{self._held_out}")
        yield _wrapped(f"reward  {rewards(self._values)}")


def _wrapped(text: str) -> Text:
    """Lines as wide as the terminal; a console that leaves long lines to the terminal would cut them here."""
    return Text(text, no_wrap=False, overflow="fold")


def _line(*cells: Any) -> Table:
    line = Table.grid(padding=(0, 1))
    line.add_row(*cells)
    return line


def rewards(values: Mapping[str, float]) -> str:
    """The mean reward of each agent, and the number of failed episodes if there are any."""
    matches = filter(None, map(re.compile("agent/([^/]+)/reward").fullmatch, sorted(values)))
    shown = "  ".join(f"{match[1]} {values[match[0]]:.2f}" for match in matches)
    failed = values.get("train/failed_episodes", 0.0)
    return f"{shown}  {failed:.0f} episodes failed" if failed else shown


def duration(seconds: float) -> str:
    """E.g. "1:05"."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


class Output(Console):
    """Standard output, or standard error. If its reader ends (`| head`), the command continues without output."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(highlight=False, soft_wrap=True, **settings)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        discard(self.file)


class Display:
    """The output of a command, by default to standard output: a live view on a terminal, else lines, and not of every
    step. A terminal with TERM=dumb gets lines too."""

    def __init__(self, console: Console | None = None, callback: Callable[[Event], object] | None = None) -> None:
        self.console = console or Output()
        self._callback = callback
        self._redraws = self.console.is_terminal and not self.console.is_dumb_terminal
        self._view = View()
        self._live: Live | None = None
        self._shown = self._begun = 0.0

    @staticmethod
    def of(progress: "Progress") -> "Display":
        """A display for True (standard output), False (no output), a function (gets every event) or a display."""
        if isinstance(progress, Display):
            return progress
        if progress is True:
            return Display()
        return Display(Console(file=io.StringIO()), progress if callable(progress) else None)

    def print(self, text: str) -> None:
        """Print a line. MarlError if standard output cannot be written, e.g. to a full disk."""
        try:
            self.console.print(text, markup=False)
        except OSError as error:
            raise unwritable(error) from error

    def note(self, text: str) -> None:
        """Show the current activity: replaced by the next note on a terminal, printed otherwise."""
        if self._redraws:
            self._view.say(text)
            self._draw()
        else:
            self.print(text)

    def _draw(self) -> None:
        """Draw the view below what is printed, until `close`."""
        if self._live is None:
            errors = sys.stderr.isatty()
            self._live = Live(self._view, console=self.console, transient=True, redirect_stderr=errors)
            self._live.start()

    def close(self) -> None:
        """Remove the view."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def stop_drawing(self) -> None:
        """Print lines from now on: another program uses the terminal."""
        self.close()
        self._redraws = False

    @contextmanager
    def task(self, name: str) -> Iterator[Callable[[float], None]]:
        """Show work that reports its progress as a fraction."""
        self.note(f"{name} ...")
        begun = time.monotonic()

        def advance(fraction: float) -> None:
            if self._redraws:
                self.note(f"{name}: {fraction:.0%}")

        try:
            yield advance
        finally:
            self.close()
        self.print(f"{name}: done in {time.monotonic() - begun:.0f} s")

    def event(self, event: Event) -> None:
        """Show an event from the process of a run or an evaluation, which continues if it cannot be shown."""
        if self._callback is not None:
            self._callback(event)
            return
        with contextlib.suppress(MarlError):
            self._show(event)

    def _show(self, event: Event) -> None:
        kind = event["event"]
        self._view.event(event)
        if kind == "terminal":  # another program uses it
            self.stop_drawing()
        elif kind == "validation":
            values = event["metrics"]
            self.print(
                f"step {event['step']:>4}  held-out success {values['validation/success']:.1%} greedy, "
                f"{values['validation/success_sampled']:.1%} sampled ({event['tasks']} tasks)"
            )
        elif kind == "playing":
            self._playing(event)
        elif self._redraws:
            self._draw()
        elif kind == "phase":
            self.print(f"{event['name']} ...")
        elif kind == "step":
            self._step(event)

    def _playing(self, event: Event) -> None:
        """Show finished tasks of an evaluation, and the remaining time of its pass."""
        done, tasks, now = event["done"], event["tasks"], time.monotonic()
        if done == 0:
            self._begun = now
        how = "sampled" if event["sampled"] else "evaluated greedily"
        left = f", {duration((now - self._begun) * (tasks - done) / done)} left" if 0 < done < tasks else ""
        if self._redraws or done == tasks or now - self._shown >= QUIET_SECONDS:
            self.note(f"{done} of {tasks} tasks {how}{left}")
            self._shown = now

    def _step(self, event: Event) -> None:
        """Print the first and the last step, and some in between."""
        step, steps, values, now = event["step"], event["steps"], event["metrics"], time.monotonic()
        if step in (1, steps) or now - self._shown >= QUIET_SECONDS:
            seconds, left = self._view.left()
            line = f"step {step}/{steps}  team success {values['train/success']:.1%}  reward: {rewards(values)}"
            self.print(f"{line}  {seconds:.1f} s/step  {duration(left)} left")
            self._shown = now


Progress = bool | Callable[[Event], object] | Display
"""The argument of `Display.of`."""


class RunEvents:
    """Shows the events of a run, and keeps what is needed after its end.

    Attributes:
        timing: the start times of phases in seconds since the command, written to timing.json.
        error: the last error event; None without one.
        activity: e.g. "while updating in step 12".
    """

    def __init__(self, folder: Path, display: Display, backend: str, begun: float) -> None:
        self.folder, self.display = folder, display
        self.timing: dict[str, Any] = {"phases": {}, "backend": backend, "begun": begun}
        self.error: dict[str, Any] | None = None
        self.activity = "while starting"

    def handle(self, event: dict[str, Any]) -> None:
        """Show an event."""
        kind, seconds = event["event"], time.time() - self.timing["begun"]
        if kind == "error":
            self.error = event
        elif kind == "doing":
            self.activity = event["activity"]
        elif kind == "phase":
            self.timing["phases"][event["name"]] = seconds
        elif kind == "started":
            self.timing["phases"]["policies started"] = seconds
        elif kind == "step":
            self.timing.setdefault("seconds_to_first_step", seconds)
        if kind in ("phase", "started", "step"):
            new = self.folder / ".timing.json"
            new.write_text(json.dumps(self.timing))
            new.replace(self.folder / "timing.json")
        self.display.event(event)


def interrupted(folder: Path, display: Display) -> KeyboardInterrupt:
    """Print how to continue an interrupted run. Returns the exception to raise, with the same message."""
    message = f"interrupted. {how_to_continue(folder)}"
    display.print(message)
    return KeyboardInterrupt(message)
