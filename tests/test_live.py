"""What a command shows of a run: a live view on a terminal, plain lines elsewhere."""

import io
import os
from typing import Any

import pytest
from rich.console import Console

from marl_verl.run import progress
from marl_verl.run.progress import Display, Output

Event = dict[str, Any]


def step(number: int, success: float, steps: int = 10, **more: float) -> Event:
    metrics = {"train/success": success, "train/tokens": 900.0, "train/failed_episodes": 0.0, "seconds/step": 3.0}
    rewards = {"agent/asker/reward": 0.25, "agent/asker/reward/team": 0.25, "agent/holder/reward": 0.5}
    return {"event": "step", "step": number, "steps": steps, "metrics": {**metrics, **rewards, **more}}


def validation(number: int, success: float) -> Event:
    metrics = {"validation/success": success, "validation/success_sampled": 0.25}
    return {"event": "validation", "step": number, "metrics": metrics, "tasks": 300}


def drawn(view: Display, width: int = 120, encoding: str = "utf-8") -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(file=file, force_terminal=True, width=width, color_system=None, _environ={}).print(view)
    file.seek(0)
    return file.read()


def test_a_running_run(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    display = Display(Console(file=io.StringIO()))
    display.event(validation(0, 0.125))
    for number, now in ((1, 100.0), (2, 103.0), (3, 109.0)):  # a validation of 3 s after step 2  # noqa: B007
        display.event(step(number, (number - 1) / 2))
    text = drawn(display)
    assert "step 3/10  team success 100.0%  reward: asker 0.25  holder 0.50  4.5 s/step  0:32 left" in text
    assert "held-out 12.5% (step 0)" in text
    display.event(step(4, 0.5, **{"train/failed_episodes": 2.0}))
    assert "holder 0.50  2 episodes failed" in drawn(display)
    assert max(map(len, drawn(display, width=40).splitlines())) <= 40


def test_a_closed_pipe_does_not_end_the_command() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        display = Display(Output(file=pipe))
        for number in range(3):
            display.event(validation(number, 0.5))
        display.print("the end")
