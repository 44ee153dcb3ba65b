"""What a command shows of a run: a live view on a terminal, plain lines elsewhere."""

import io
import os
from collections.abc import Iterable
from typing import Any

import pytest
from rich.console import Console

from marl_verl.run import progress
from marl_verl.run.progress import Display, Output, View

Event = dict[str, Any]


def step(number: int, success: float, steps: int = 10, **more: float) -> Event:
    metrics = {"train/success": success, "train/tokens": 900.0, "train/failed_episodes": 0.0, "seconds/step": 3.0}
    rewards = {"agent/asker/reward": 0.25, "agent/asker/reward/team": 0.25, "agent/holder/reward": 0.5}
    return {"event": "step", "step": number, "steps": steps, "metrics": {**metrics, **rewards, **more}}


def validation(number: int, success: float) -> Event:
    metrics = {"validation/success": success, "validation/success_sampled": 0.25}
    return {"event": "validation", "step": number, "metrics": metrics, "tasks": 300}


def phase(name: str) -> Event:
    return {"event": "phase", "name": name}


def drawn(view: View, width: int = 120, encoding: str = "utf-8") -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, force_terminal=True, width=width, color_system=None, _environ={})
    console.print(view)
    file.seek(0)
    return file.read()


def played(events: Iterable[Event]) -> View:
    view = View()
    for event in events:
        view.event(event)
    return view


def test_a_running_run(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([100.0, 103.0, 109.0, 112.0])  # a validation of 3 s after step 2
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now, 112.0))
    view = played([validation(0, 0.125), step(1, 0.0), step(2, 0.5), step(3, 1.0)])
    text = drawn(view)
    assert "step 3/10" in text
    assert "3.0 s/step  0:28 left" in text
    assert "team success  ▁▅█  100.0%   held-out 12.5% (step 0)" in text
    assert "reward  asker 0.25  holder 0.50" in text
    view.event(step(4, 0.5, **{"train/failed_episodes": 2.0}))
    assert "holder 0.50  2 episodes failed" in drawn(view)
    assert max(map(len, drawn(view, width=40).splitlines())) <= 40


def test_a_closed_pipe_does_not_end_the_command() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        display = Display(Output(file=pipe))
        for number in range(3):
            display.event(validation(number, 0.5))
        display.print("the end")
