"""What the user sees while a run works: one line that lives on a terminal, a line now and then in a file."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.status import Status

QUIET_SECONDS = 10.0  # without a terminal, at most one progress line in this time


class Display:
    """The command line's output. Steps replace each other on a terminal and are thinned out elsewhere."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True)
        self._status: Status | None = None
        self._shown = 0.0
        self._durations: list[float] = []

    def print(self, text: str) -> None:
        """A line that stays."""
        self.console.print(text, markup=False)

    def error(self, text: str) -> None:
        """A line on standard error."""
        self.close()
        print(text, file=sys.stderr)

    def note(self, text: str) -> None:
        """What is going on now: replaced by the next note on a terminal, printed elsewhere."""
        if not self.console.is_terminal:
            self.print(text)
        elif self._status is None:
            self._status = self.console.status(text)
            self._status.start()
        else:
            self._status.update(text)

    def close(self) -> None:
        """Take the living line away."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    @contextmanager
    def task(self, name: str) -> Iterator[Callable[[float], None]]:
        """A piece of work that reports its progress as a fraction."""
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

    def event(self, event: dict[str, Any]) -> None:
        """Show an event of the trainer."""
        kind = event["event"]
        if kind == "phase":
            self.note(f"{event['name']} ...")
        elif kind == "step":
            self._step(event)
        elif kind == "validation":
            values = event["metrics"]
            self.print(
                f"step {event['step']:>4}  held-out success {values['validation/success']:.1%} greedy, "
                f"{values['validation/success_sampled']:.1%} sampled ({event['tasks']} tasks)"
            )

    def _step(self, event: dict[str, Any]) -> None:
        step, steps, values = event["step"], event["steps"], event["metrics"]
        self._durations = [*self._durations[-19:], values["seconds/step"]]
        seconds = sum(self._durations) / len(self._durations)
        agents = sorted({name.split("/")[1] for name in values if name.startswith("agent/")})
        rewards = "  ".join(f"{agent} {values[f'agent/{agent}/reward']:.2f}" for agent in agents)
        failed = f"  {values['train/failed_episodes']:.0f} episodes failed" if values["train/failed_episodes"] else ""
        line = (
            f"step {step}/{steps}  team success {values['train/success']:.1%}  reward: {rewards}{failed}  "
            f"{seconds:.1f} s/step  {duration(seconds * (steps - step))} left"
        )
        now = time.monotonic()
        if self.console.is_terminal:
            self.note(line)
        elif step == 1 or step == steps or now - self._shown >= QUIET_SECONDS:
            self.print(line)
            self._shown = now


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
