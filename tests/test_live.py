"""What a command shows of a run: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from rich.live import Live

from marl_verl.events import EVENTS_VARIABLE, Phases, awaited
from marl_verl.run import progress
from marl_verl.run.progress import Display, Output, View, usual

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
    peak = {"policy/asker/perf/max_memory_allocated_gb": 1.25, "policy/holder/perf/max_memory_allocated_gb": 0.5}
    now = iter([100.0, 103.0, 109.0, 112.0])  # a validation of 3 s after step 2
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now, 112.0))
    view = played([validation(0, 0.125), step(1, 0.0), step(2, 0.5), step(3, 1.0, **peak)])
    text = drawn(view)
    assert "step 3/10" in text
    assert "3.0 s/step  0:28 left" in text
    assert "team success  ▁▅█  100.0%   held-out 12.5% (step 0)" in text
    assert "reward  asker 0.25  holder 0.50" in text
    assert "300 tokens/s  memory " in text
    assert "training processes at most 1.2 GiB" in text
    view.event(step(4, 0.5, **{"train/failed_episodes": 2.0}))
    assert "holder 0.50  2 episodes failed" in drawn(view)
    assert max(map(len, drawn(view, width=40).splitlines())) <= 40


def test_the_phase_of_a_step_is_compared_with_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    view, now = View(), [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    view.event({"event": "doing", "activity": "while updating in step 1", "phases": ["updating"]})
    now[0] += 5
    assert "updating 5 s" in drawn(view)  # nothing to compare with yet
    view.event(step(1, 0.5, **{"seconds/update": 8.0}))
    assert "5 of about 8 s" in drawn(view)
    view.event({"event": "doing", "activity": "", "phases": ["sampling", "updating"]})
    assert "sampling and updating" in drawn(view)


def test_the_start_names_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    view, now = View(), [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    view.usual = {"starting policies": 31.4}
    for what in ("server of asker", "server of holder", "training of asker"):
        view.event({"event": "awaited", "what": what, "ready": False})
    view.event(phase("starting policies"))
    view.event({"event": "awaited", "what": "server of holder", "ready": True})
    now[0] = 12.0
    text = drawn(view)
    assert "12 of about 31 s" in text
    assert "waiting for server of asker, training of asker" in text
    view.event(phase("first validation"))
    view.event({"event": "doing", "activity": "", "phases": ["validating"]})
    assert "first validation" in drawn(view)
    view.event({"event": "doing", "activity": "", "phases": ["sampling"]})
    assert "sampling" in drawn(view)


@pytest.mark.parametrize("terminal", [False, True], ids=["file", "dumb terminal"])
def test_plain_lines_where_output_cannot_be_redrawn(terminal: bool) -> None:
    out = io.StringIO()
    options: dict[str, Any] = {"force_terminal": terminal, "color_system": None, "_environ": {"TERM": "dumb"}}
    display = Display(Console(file=out, soft_wrap=True, highlight=False, **options))
    display.expect({"starting policies": 31.4})
    for event in (
        phase("starting Ray"),
        phase("starting policies"),
        validation(0, 0.125),
        *(step(n, 0.5) for n in (1, 2, 10)),
    ):
        display.event(event)
    display.event({"event": "doing", "activity": "while updating", "phases": ["updating"]})
    display.event({"event": "awaited", "what": "server of asker", "ready": True})
    assert out.getvalue().splitlines() == [
        "starting Ray ...",
        "starting policies ... (usually 31 s)",
        "step    0  held-out success 12.5% greedy, 25.0% sampled (300 tasks)",
        "step 1/10  team success 50.0%  reward: asker 0.25  holder 0.50  3.0 s/step  0:27 left",
        "step 10/10  team success 50.0%  reward: asker 0.25  holder 0.50  3.0 s/step  0:00 left",
    ]


def test_a_terminal_gets_the_view_and_lines_above_it() -> None:
    out = io.StringIO()
    options: dict[str, Any] = {"color_system": None, "highlight": False, "_environ": {"TERM": "xterm"}}
    display = Display(Console(file=out, force_terminal=True, width=100, **options))
    for event in (phase("starting policies"), validation(0, 0.125), step(1, 0.5), step(2, 0.5)):
        display.event(event)
    display.close()
    display.print("done")
    text = out.getvalue()
    assert "starting policies" in text
    assert "step    0  held-out success 12.5% greedy, 25.0% sampled (300 tasks)\n" in text
    assert "step 2/10" in text
    assert text.endswith("done\n")
    assert "step 1/10  team success" not in text  # no line per step


def test_a_notebook_gets_the_view_in_an_output_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    drawings: list[str] = []
    output = SimpleNamespace(update=drawings.append)
    shown = SimpleNamespace(HTML=str, display=lambda html, display_id: drawings.append(html) or output)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(display=shown))
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    monkeypatch.setattr("marl_verl.run.cell.PERIOD", 0.01)
    display = Display(Console(file=io.StringIO(), force_jupyter=True, quiet=True))
    for number in (1, 2):
        display.event(step(number, 0.5))
        until = time.monotonic() + 30
        while f"step {number}/10" not in drawings[-1]:
            assert time.monotonic() < until
    display.close()
    assert drawings[0].startswith("<pre")
    assert "step" not in drawings[-1]


def test_usual_durations_are_those_of_earlier_runs(tmp_path: Path) -> None:
    def run(name: str, policies: list[str], start: float, validated: float | None = None) -> None:
        (tmp_path / name).mkdir()
        phases = {
            "starting Ray": 2.0,
            "starting policies": 4.0,
            "policies started": 4.0 + start,
            "first validation": 40.0,
        }
        timing = {"phases": phases, "policies": {each: {"server": 1.0} for each in policies}}
        timing |= {} if validated is None else {"validated": validated}
        (tmp_path / name / "timing.json").write_text(json.dumps(timing))

    assert usual(tmp_path / "new", ["a", "b"], "verl") == {}
    run("one", ["a", "b"], 30.0)
    run("two", ["b", "a"], 32.0, validated=47.0)
    run("other", ["a", "c"], 300.0)
    durations = usual(tmp_path / "new", ["a", "b"], "verl")
    assert usual(tmp_path / "new", ["a", "b"], "local") == {}
    assert (durations["starting Ray"], durations["starting policies"], durations["first validation"]) == (
        2.0,
        31.0,
        7.0,
    )


def test_events_of_a_start_and_of_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    monkeypatch.setenv(EVENTS_VARIABLE, str(writing))
    with awaited("server of asker"), Phases(3)("updating"):
        pass
    os.close(writing)
    with os.fdopen(reading) as file:
        events = [json.loads(line) for line in file]
    assert [(each["event"], each.get("ready"), each.get("phases")) for each in events] == [
        ("awaited", False, None),
        ("doing", None, ["updating"]),
        ("doing", None, []),
        ("awaited", True, None),
    ]


def test_long_lines_are_wrapped_also_where_other_output_is_not() -> None:
    rewards = {f"agent/researcher-{number}/reward": 0.5 for number in range(9)}
    view = played([step(1, 0.0, **rewards, **{"train/failed_episodes": 7.0})])
    view.event({"event": "awaited", "what": "a long name, " * 9 + "the last one", "ready": False})
    file = io.StringIO()
    with Live(view, console=Output(file=file, force_terminal=True, width=80, _environ={}), auto_refresh=False):
        pass
    text = file.getvalue().replace("\n", " ")
    assert "researcher-8 0.50" in text
    assert "7 episodes failed" in text
    assert "the last one" in text


def test_a_closed_pipe_does_not_end_the_command() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        display = Display(Output(file=pipe))
        for number in range(3):
            display.event(validation(number, 0.5))
        display.print("the end")
