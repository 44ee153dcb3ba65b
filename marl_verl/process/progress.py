"""Progress output of a run: one updated line on a terminal, occasional lines in a file or a notebook."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.status import Status

from marl_verl.errors import MarlError
from marl_verl.process.terminal import unwritable

QUIET_SECONDS = 10.0  # minimum time between progress lines without a terminal

Event = dict[str, Any]
"""{"event": "phase" | "started" | "step" | "validation" | "playing" | ..., ...}."""


class Display:
    """The output of a command, by default to standard output. Without a terminal not every step is printed."""

    def __init__(self, console: Console | None = None, callback: Callable[[Event], object] | None = None) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True)
        self._callback = callback
        self._status: Status | None = None
        self._shown = self._begun = 0.0
        self._durations: list[float] = []

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

    def note(self, text: str) -> None:
        """Show the current state: replaced by the next note on a terminal, printed otherwise."""
        if not self.console.is_terminal:
            self.print(text)
        elif self._status is None:
            self._status = self.console.status(text)
            self._status.start()
        else:
            self._status.update(text)

    def close(self) -> None:
        """Remove the line of the last note."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    @contextmanager
    def task(self, name: str) -> Iterator[Callable[[float], None]]:
        """Show work that reports its progress as a fraction."""
        self.note(f"{name} ...")
        begun = time.monotonic()

        def advance(fraction: float) -> None:
            if self.console.is_terminal:
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
        if kind == "phase":
            self.note(f"{event['name']} ...")
        elif kind == "step":
            self._step(event)
        elif kind == "playing":
            self._playing(event)
        elif kind == "validation":
            values = event["metrics"]
            self.print(
                f"step {event['step']:>4}  held-out success {values['validation/success']:.1%} greedy, "
                f"{values['validation/success_sampled']:.1%} sampled ({event['tasks']} tasks)"
            )

    def _playing(self, event: Event) -> None:
        """Show finished tasks of an evaluation, and the remaining time of its pass."""
        done, tasks, now = event["done"], event["tasks"], time.monotonic()
        if done == 0:
            self._begun = now
        how = "sampled" if event["sampled"] else "evaluated greedily"
        left = f", {_duration((now - self._begun) * (tasks - done) / done)} left" if 0 < done < tasks else ""
        if self.console.is_terminal or done == tasks or now - self._shown >= QUIET_SECONDS:
            self.note(f"{done} of {tasks} tasks {how}{left}")
            self._shown = now

    def _step(self, event: Event) -> None:
        step, steps, values = event["step"], event["steps"], event["metrics"]
        self._durations = [*self._durations[-19:], values["seconds/step"]]
        seconds = sum(self._durations) / len(self._durations)
        agents = sorted({name.split("/")[1] for name in values if name.startswith("agent/")})
        rewards = "  ".join(f"{agent} {values[f'agent/{agent}/reward']:.2f}" for agent in agents)
        failed = f"  {values['train/failed_episodes']:.0f} episodes failed" if values["train/failed_episodes"] else ""
        line = (
            f"step {step}/{steps}  team success {values['train/success']:.1%}  reward: {rewards}{failed}  "
            f"{seconds:.1f} s/step  {_duration(seconds * (steps - step))} left"
        )
        now = time.monotonic()
        if self.console.is_terminal:
            self.note(line)
        elif step == 1 or step == steps or now - self._shown >= QUIET_SECONDS:
            self.print(line)
            self._shown = now


Progress = bool | Callable[[Event], object] | Display
"""The argument of `Display.of`."""


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
