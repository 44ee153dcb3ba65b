"""What the events of a run say to the command line: its error, what it does, and the times of its phases."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from marl_verl.run.parent import how_to_continue
from marl_verl.run.progress import Display


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
            self.timing["policies"] = event["seconds"]
            self.timing["phases"]["policies started"] = seconds
        elif kind == "step":
            self.timing.setdefault("seconds_to_first_step", seconds)
        elif kind == "validation" and "seconds_to_first_step" not in self.timing:
            self.timing["validated"] = seconds
        if kind in ("phase", "started", "step", "validation"):
            new = self.folder / ".timing.json"
            new.write_text(json.dumps(self.timing))
            new.replace(self.folder / "timing.json")
        self.display.event(event)


def interrupted(folder: Path, display: Display) -> KeyboardInterrupt:
    """Print how to continue an interrupted run. Returns the exception to raise, with the same message."""
    message = f"interrupted. {how_to_continue(folder)}"
    display.print(message)
    return KeyboardInterrupt(message)
