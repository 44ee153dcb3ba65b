"""`marl-verl watch` in a real Chromium: runs that resume, stop or are damaged."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from marl_verl.run.run_dir import RunDir, locked
from tests.browser import Page, needs_chromium, watched
from tests.run_folder import run_folder, team_of, write_step

pytestmark = [needs_chromium, pytest.mark.slow]

STATUS = "document.querySelector('#status').innerText"
COUNT = "document.querySelector('#count').innerText"
READY = f"!{STATUS}.startsWith('marl-verl')"  # the first event
STEP = "document.querySelector('#f-step-text').innerText"


@pytest.fixture
def page(tab: Page) -> Iterator[Page]:
    tab.problems.clear()
    yield tab
    tab.value("1")  # reads the messages up to here
    assert tab.problems == []


@pytest.mark.parametrize("follow", ["yes", ""])
def test_a_repeated_step_is_shown_anew(page: Page, tmp_path: Path, follow: str) -> None:
    folder = run_folder(tmp_path / "run", steps=3)
    run, team = RunDir(folder), team_of(("scout", "mover"))
    with watched(page, folder, READY):
        page.wait(f"{COUNT}.startsWith('3 of 3')")
        page.set("#f-follow", follow)
        run.forget_after(2)
        page.wait(f"{STEP}.startsWith('2 (2 of 2')")
        write_step(run, team, 3, 5)
        page.wait("document.querySelector('#f-step').max === '2'")
        page.set("#f-step", "2")
        page.wait(f"{COUNT}.startsWith('9 of 9')")
        write_step(run, team, 3, 4)  # replaced between two looks at the run directory
        starts = json.loads((folder / "starts.json").read_text())
        (folder / "starts.json").write_text(json.dumps([*starts, {"arguments": ["--resume", "run"]}]))
        page.wait(f"{COUNT}.startsWith('7 of 7')")


def test_a_run_that_stops(page: Page, tmp_path: Path) -> None:
    """No watched file changes when it crashes."""
    folder = run_folder(tmp_path / "run", steps=3)
    message = f"Stopped at step 3 of 3, see {folder}/train.log. No checkpoint was saved yet: start a new run"
    with locked(folder), watched(page, folder, READY):
        page.wait(f"{STATUS}.startsWith('Live')")
        (folder / ".lock").rename(folder / "lock")
        page.wait(f"{STATUS} === '{message}'")
        assert page.text("#runs .error") == message
        (folder / "lock").rename(folder / ".lock")
        page.wait(f"{STATUS}.startsWith('Live')")
        (folder / "summary.json").write_text("{}")
        page.wait(f"{STATUS} === 'The run has finished.'")
