"""Progress output of a run: a live view on a terminal, occasional lines in a file or a notebook."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live

from marl_verl.errors import MarlError
from marl_verl.run.live import View, duration, rewards
from marl_verl.run.terminal import discard, unwritable

QUIET_SECONDS = 10.0  # minimum time between progress lines without a terminal

Event = dict[str, Any]
"""{"event": "phase" | "started" | "step" | "validation" | "playing" | ..., ...}."""


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
    def of(progress: Progress) -> Display:
        """A display for True (standard output), False (no output), a function (gets every event) or a display."""
        if isinstance(progress, Display):
            return progress
        if progress is True:
            return Display()
        return Display(Console(file=io.StringIO(), quiet=True), progress if callable(progress) else None)

    def print(self, text: str) -> None:
        """Print a line. MarlError if standard output cannot be written, e.g. to a full disk."""
        try:
            self.console.print(text, markup=False)
        except OSError as error:
            raise unwritable(error) from error

    def expect(self, usual: Mapping[str, float]) -> None:
        """Show how long phases usually take: name -> seconds."""
        self._view.usual = dict(usual)

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
            self._live = Live(self._view, console=self.console, refresh_per_second=5, transient=True)
            self._live.start()

    def close(self) -> None:
        """Remove the view."""
        if self._live is not None:
            self._live.stop()
            self._live = None

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
        if kind == "validation":
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
            usual = self._view.usual.get(event["name"], 0.0)
            self.print(f"{event['name']} ..." + (f" (usually {usual:.0f} s)" if usual >= 1 else ""))
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
