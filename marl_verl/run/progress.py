"""Progress output of a run: a live view on a terminal, occasional lines elsewhere."""

import contextlib
import io
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.text import Text

from marl_verl.errors import MarlError
from marl_verl.run.terminal import discard, writing

QUIET_SECONDS = 10.0  # minimum time between progress lines without a terminal

Event = dict[str, Any]
"""{"event": "phase" | "started" | "step" | "validation" | "playing" | "terminal" | ..., ...}."""


def rewards(values: Mapping[str, float]) -> str:
    """The mean reward of each agent, and the number of failed episodes if there are any."""
    matches = filter(None, map(re.compile("agent/([^/]+)/reward").fullmatch, sorted(values)))
    shown = "  ".join(f"{match[1]} {values[match[0]]:.2f}" for match in matches)
    failed = values.get("train/failed_episodes", 0.0)
    return f"{shown}  {failed:.0f} episodes failed" if failed else shown


class Output(Console):
    """Standard output, or standard error. If its reader ends (`| head`), the command continues without output."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(highlight=False, soft_wrap=True, **settings)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        discard(self.file)


class Display:
    """The output of a command, by default to standard output: a live view on a terminal, else lines, and not of every
    step. A terminal with TERM=dumb gets lines too. `begun`: when the command began."""

    def __init__(self, console: Console | None = None, callback: Callable[[Event], object] | None = None) -> None:
        self.console, self.begun = console or Output(), time.time()
        self._callback = callback
        self._redraws = self.console.is_terminal and not self.console.is_dumb_terminal
        self._live: Live | None = None
        self._activity, self._since, self._spinner = "", 0.0, Spinner("dots")
        self._waiting: list[str] = []  # for what, at the start of a run on Ray
        self._step: Event | None = None  # the last one
        self._line, self._held_out = "", ""
        self._shown = 0.0  # when the last line of a step or of an evaluation was printed
        self._first: tuple[int, float] | None = None  # the first step that ended, and when

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """What rich draws below the printed lines, from another thread: steps of a run, and its current activity."""
        if self._step is not None:
            yield ProgressBar(self._step["steps"], self._step["step"], width=30)
            for text in filter(None, (self._line, self._held_out)):
                yield Text(text, no_wrap=False, overflow="fold")  # the console leaves long lines to the terminal
        waiting = f"  waiting for {', '.join(self._waiting)}" if self._waiting else ""
        self._spinner.update(text=f"{self._activity}  {time.monotonic() - self._since:.0f} s{waiting}")
        yield self._spinner

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
        with writing():
            self.console.print(text, markup=False)

    def note(self, text: str) -> None:
        """Show the current activity: replaced by the next note on a terminal, printed otherwise."""
        self._activity, self._since = text, time.monotonic()
        if self._redraws:
            self._draw()
        else:
            self.print(text)

    def _draw(self) -> None:
        """Draw the view below what is printed, until `close`."""
        if self._live is None:
            errors = sys.stderr.isatty()
            self._live = Live(self, console=self.console, transient=True, redirect_stderr=errors)
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
        try:
            yield lambda fraction: self.note(f"{name}: {fraction:.0%}") if self._redraws or self._is_due() else None
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
        if kind == "terminal":  # another program uses it
            self.stop_drawing()
        elif kind == "phase":
            self.note(f"{event['name']} ...")
        elif kind == "doing" and event.get("phases"):
            self._activity, self._since = " and ".join(dict.fromkeys(event["phases"])), time.monotonic()
        elif kind == "awaited":
            (self._waiting.remove if event["ready"] else self._waiting.append)(event["what"])
        elif kind == "validation":
            success = event["metrics"]["validation/success"]
            sampled = event["metrics"]["validation/success_sampled"]
            self._held_out = f"held-out {success:.1%} (step {event['step']})"
            line = f"step {event['step']:>4}  held-out success {success:.1%} greedy, {sampled:.1%} sampled"
            self.print(f"{line} ({event['tasks']} tasks)")
        elif kind == "playing":
            done, tasks = event["done"], event["tasks"]
            if self._redraws or done == tasks or self._is_due():
                self.note(f"{done} of {tasks} tasks {'sampled' if event['sampled'] else 'evaluated greedily'}")
        elif kind == "step":
            self._show_step(event)

    def _show_step(self, event: Event) -> None:
        """Show a step; without a terminal only the first and the last one, and some in between."""
        step, steps, values, now = event["step"], event["steps"], event["metrics"], time.monotonic()
        self._first = first = self._first or (step, now)
        # with the validations and checkpoints between
        seconds = (now - first[1]) / (step - first[0]) if step > first[0] else values["seconds/step"]
        minutes, rest = divmod(round(seconds * (steps - step)), 60)
        line = f"step {step}/{steps}  team success {values['train/success']:.1%}  reward: {rewards(values)}"
        self._line = f"{line}  {seconds:.1f} s/step  {minutes}:{rest:02d} left"
        self._step = event
        if self._redraws:
            self._draw()
        elif self._is_due() or step in (1, steps):
            self.print(self._line)

    def _is_due(self) -> bool:
        """Whether the last line was printed some time ago; the next one is printed now."""
        due = time.monotonic() - self._shown >= QUIET_SECONDS
        self._shown = time.monotonic() if due else self._shown
        return due


Progress = bool | Callable[[Event], object] | Display  # the argument of `Display.of`
