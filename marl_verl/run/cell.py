"""The live view of a run below the cell of a notebook."""

from __future__ import annotations

import io
import threading
from typing import Any

from rich.console import Console, RenderableType

PERIOD, WIDTH = 0.5, 100  # seconds between two drawings; characters of a line
PRE = '<pre style="line-height:normal;font-family:Menlo,Consolas,monospace">{code}</pre>'


class Cell:
    """Draws in an output of its own, with IPython alone: rich needs ipywidgets. As rich's `Live`."""

    def __init__(self, view: RenderableType) -> None:
        self._view, self._stopped = view, threading.Event()
        self._thread = threading.Thread(target=self._draw, name="marl-verl view", daemon=True)

    def start(self) -> None:
        from IPython.display import display

        self._output: Any = display(self._html(), display_id=True)
        self._thread.start()

    def stop(self) -> None:
        """Remove the view."""
        self._stopped.set()
        self._thread.join()
        self._output.update(self._html(""))

    def _draw(self) -> None:
        while not self._stopped.wait(PERIOD):
            self._output.update(self._html())

    def _html(self, text: str | None = None) -> Any:
        from IPython.display import HTML

        console = Console(file=io.StringIO(), record=True, width=WIDTH, force_jupyter=False, force_terminal=True)
        console.print(self._view if text is None else text)
        return HTML(console.export_html(inline_styles=True, code_format=PRE))
