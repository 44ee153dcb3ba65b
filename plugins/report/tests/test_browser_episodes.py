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
