"""The episodes of the report in a real Chromium: failed attempts, off-path turns, tree colours, long texts, live steps.

These tests are skipped where no Chromium is installed.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from marl_verl.algo.sampling import Sample
from marl_verl.cli.main import main
from marl_verl.run.lock import locked
from marl_verl.run.run_dir import RunDir
from marl_verl.tasks.base import Task
from marl_verl.team import TeamConfig
from tests import run_folder as folders
from tests.browser import Page, needs_chromium, watched

pytestmark = [needs_chromium, pytest.mark.slow]


@pytest.fixture
def page(tab: Page) -> Iterator[Page]:
    """A test fails if the page has thrown an exception."""
    tab.problems.clear()
    yield tab
    tab.value("1")  # reads the messages up to here
    assert [each for each in tab.problems if "500 (Internal Server Error)" not in each] == []


def report(page: Page, folder: Path) -> None:
    assert main(["report", str(folder)]) == 0
    page.open((folder / "report.html").as_uri())


@contextmanager
def live(page: Page, folder: Path) -> Iterator[None]:
    with locked(folder), watched(page, folder, "document.querySelector('#status').innerText.startsWith('Live')"):
        yield  # as during training


def test_turns_of_rejected_candidates_are_listed(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the sampler best-of stores them: without nodes, so there is no tree."""
    episode = folders._episode

    def sample(team: TeamConfig, uid: str, number: int, tree: bool) -> Sample:
        chosen, *rejected = (episode(team, uid, at, Task("t", "p", {}), False) for at in range(3))
        chosen.off_path_turns = [turn for each in rejected for turn in each.turns]
        return Sample([chosen])

    monkeypatch.setattr(folders, "_sample", sample)
    report(page, folders.run_folder(tmp_path / "run", steps=1, tasks=1))
    assert page.value("document.querySelector('.tree')") is None
    found = page.value("""[...document.querySelectorAll('#episode .off-path')].map((each) => [each.open,
      each.querySelector('summary').innerText, each.querySelectorAll('.turn').length,
      each.innerHTML.match(/>(baseline|advantage) -?[0-9]/g).length])""")
    assert found == [[False, "Session 1: 4 turns", 4, 8], [False, "Session 2: 4 turns", 4, 8]]
    assert page.value("document.querySelectorAll('#episode .path .turn:not(.call)').length") == 4


def test_a_step_that_cannot_be_shown_leaves_no_other_episodes(page: Page, tmp_path: Path) -> None:
    folder = folders.run_folder(tmp_path / "run", steps=2)
    with live(page, folder):
        page.wait("document.querySelectorAll('#list button').length === 3")
        (folder / "journals" / "step_00001.jsonl").write_text("x\n")
        page.set("#f-step", "0")
        page.wait("document.querySelector('#episode').innerText.startsWith('Step 1 cannot be shown: ')")
        assert page.value("document.querySelectorAll('#list li, #tasks option').length") == 0
        assert page.text("#count") == page.text("#left-out") == ""
        # An error that arrives after another step was chosen does not replace its episodes.
        page.value("""(async () => {
          view.step = 1;
          const late = episodes();
          view.step = 2;
          await Promise.all([episodes(), late]);
        })()""")
        assert page.text("#episode h3").startswith("s2t")


def test_the_slider_shows_the_steps_of_now(page: Page, tmp_path: Path) -> None:
    folder = folders.run_folder(tmp_path / "run", steps=1)
    with live(page, folder):
        page.value("document.querySelectorAll('#list button')[1].click()")
        assert page.value("document.querySelector('#f-step').disabled")
        assert page.text("#f-step-text") == "1 (1 of 1 shown, 1 stored)"
        for step in (2, 3):
            folders.write_step(RunDir(folder), folders.team_of(("scout", "mover")), step, 2)
        page.wait("document.querySelector('#f-step-text').innerText === '1 (1 of 3 shown, 3 stored)'")
        slider = "document.querySelector('#f-step')"
        assert page.value(f"[{slider}.disabled, {slider}.min, {slider}.value, {slider}.max]") == [False, "0", "0", "2"]


def test_failed_attempts_are_filtered_and_shown(page: Page, tmp_path: Path) -> None:
    report(page, folders.run_folder(tmp_path / "run", steps=1, tasks=3))
    page.set("#f-result", "failed")
    page.wait("document.querySelectorAll('#list button').length === 3")
    assert page.text("#count") == "3 of 3 failed attempts"
    page.value("document.querySelectorAll('#list button')[2].click()")
    assert page.text("#episode h3") == "s1t00002_7"
    assert page.text("#episode pre").startswith("too long <script>")
    page.set("#f-task", "T00001")
    page.wait("document.querySelectorAll('#list button').length === 1")
    assert page.text("#episode h3") == "s1t00001_7"
    page.set("#f-task", "zzz")
    page.wait("document.querySelectorAll('#list button').length === 0")
    assert page.text("#count") == "0 of 3 failed attempts"
    assert page.text("#episode") == "No failed attempt matches the filters."


def test_omitted_failed_attempts_are_mentioned(page: Page, tmp_path: Path) -> None:
    report(page, folders.run_folder(tmp_path / "run", steps=1, tasks=30))
    assert page.text("#left-out") == "10 failed attempts of this step are left out."


def test_the_tree_names_its_colours_and_marks_the_selected_node(page: Page, tmp_path: Path) -> None:
    folder = folders.run_folder(tmp_path / "run", steps=1, tasks=1)
    report(page, folder)
    fills = "[...new Set([...document.querySelectorAll('.tree circle')].map((each) => getComputedStyle(each).fill))]"
    assert {"rgb(223, 32, 32)", "rgb(32, 96, 223)"} < set(page.value(fills))  # hues 0 and 220
    assert re.search("^Colour: value, blue [-0-9.]+ to red [-0-9.]+[.] Thick", page.text("[aria-label=Tree] .note"))
    for at in (0, 1):
        page.value(f"document.querySelectorAll('.tree .node')[{at}].dispatchEvent(new Event('click'))")
        pressed = "[...document.querySelectorAll('.tree .node')].map((each) => each.getAttribute('aria-pressed'))"
        assert [each == "true" for each in page.value(pressed)] == [other == at for other in range(8)]
    assert page.value("getComputedStyle(document.querySelector('[aria-pressed=true] circle')).strokeWidth") == "5px"
    assert page.value("getComputedStyle(document.querySelector('.tree text')).paintOrder").startswith("stroke")

    shutil.rmtree(folder / "rows")
    (journal,) = (folder / "journals").iterdir()
    stored = journal.read_text()
    for rewards, legend in (('{"role":0.5}', "values unknown"), ('{"team":0.5}', "value, all 0.5")):
        journal.write_text(re.sub(r'"rewards": ?\{[^}]*\}', f'"rewards":{rewards}', stored))
        report(page, folder)
        assert page.text("[aria-label=Tree] .note").startswith(f"Colour: {legend}.")


def test_texts_that_change_their_direction(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "PLANTED", "\u202eevil \u2066")
    report(page, folders.run_folder(tmp_path / "run", steps=1, agents=("סייר", "mover")))
    for selector in ("#list", "#episode"):
        assert (
            page.value(f"/[\\u202a-\\u202e\\u2066-\\u2069]/.test(document.querySelector('{selector}').textContent)")
            is False
        )
        assert "\\u202eevil \\u2066" in page.text(selector)
    assert page.value("getComputedStyle(document.querySelector('pre')).unicodeBidi") == "plaintext"
    assert page.value("document.querySelector('#episode .who').tagName") == "BDI"


def test_very_long_texts_are_folded(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "PLANTED", "x" * 1_000_000)
    report(page, folders.run_folder(tmp_path / "run", steps=1, tasks=1))
    assert page.value("document.documentElement.scrollHeight") < 10_000
    assert page.value("document.documentElement.scrollWidth") <= 1600
    lines = page.value("parseFloat(getComputedStyle(document.querySelector('.entry')).lineHeight)") * 2
    assert page.value("document.querySelector('.entry').offsetHeight") <= lines + 1
    assert page.value("document.querySelector('.says').textContent.length") == 504
    assert page.text(".says + details summary") == "All 1000014 characters"
    assert page.value("document.querySelector('.says + details pre').textContent.length") == 1_000_014
    page.set("#f-result", "failed")
    page.wait("document.querySelector('#episode h3').innerText === 's1t00000_7'")
    assert page.value("document.documentElement.scrollHeight") < 10_000
