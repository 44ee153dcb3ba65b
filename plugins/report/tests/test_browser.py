"""Report and watch in a real Chromium: no errors, filters, the step slider, trees, widths, colours, the keyboard.

These tests are skipped where no Chromium is installed; tests/test_report_command.py checks the content without one.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from marl_verl_report import watch
from marl_verl_report.human import human

from marl_verl.cli.main import main
from marl_verl.run.run_dir import RunDir, locked
from tests.browser import Page, needs_chromium, watched
from tests.run_folder import PLANTED, run_folder, team_of, write_step

pytestmark = [needs_chromium, pytest.mark.slow]

DRAWN = "document.querySelectorAll('#charts .plot .main-svg').length > 0"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reports of one run and of two; texts, task ids and an agent's name contain markup with scripts."""
    folder = tmp_path_factory.mktemp("runs")
    one = run_folder(folder / "one", steps=3, tasks=3, agents=(f"scout{PLANTED}", "mover"))
    two = run_folder(folder / "two", steps=2)
    assert main(["report", str(one), "--output", str(folder / "one.html")]) == 0
    assert main(["report", str(one), str(two), "--output", str(folder / "both.html")]) == 0
    return folder


@pytest.fixture
def page(tab: Page, runs: Path) -> Iterator[Page]:
    """The report of one run; a test fails if the page has logged an error, or has requested anything."""
    tab.problems.clear()
    tab.open((runs / "one.html").as_uri())
    yield tab
    tab.value("1")  # reads the messages up to here
    assert tab.problems == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1600])
def test_it_fits_and_is_readable(page: Page, runs: Path, width: int, dark: bool) -> None:
    page.open((runs / "one.html").as_uri(), width, dark)
    page.wait(DRAWN)
    assert page.value("document.documentElement.scrollWidth") <= width
    assert page.value("[...document.querySelectorAll('figure, .turn')].every(e => e.scrollWidth <= e.clientWidth + 1)")
    contrast = """(() => {
      const light = (text) => { const [r, g, b] = text.match(/[\\d.]+/g).map((v) => v / 255)
        .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
      const back = light(getComputedStyle(document.body).backgroundColor);
      return Math.min(...[...document.querySelectorAll('p, h2, .who, .yes, .no, summary, label, a')].map((e) => {
        const ink = light(getComputedStyle(e).color);
        return (Math.max(ink, back) + 0.05) / (Math.min(ink, back) + 0.05); }));
    })()"""
    assert page.value(contrast) >= 4.5  # WCAG 2, level AA
    back = page.value("getComputedStyle(document.body).backgroundColor")
    assert back == ("rgb(13, 17, 23)" if dark else "rgb(255, 255, 255)")


def test_scripts_in_texts_are_shown_as_text(page: Page) -> None:
    page.wait(DRAWN)
    assert page.value("document.title") == "one - marl-verl report"
    assert page.value("document.querySelectorAll('img').length") == 0
    for selector in ("#list", "#episode .says", "#episode .who", "#run pre"):
        assert "<script>" in page.text(selector)
    assert "<script>" in str(page.value("document.querySelectorAll('#charts .legend')[1].textContent"))


def test_a_turn_with_its_equation(page: Page) -> None:
    page.value("document.querySelectorAll('.why').forEach((each) => { each.open = true; })")
    assert page.text(".equation").startswith("advantage = (return - baseline) / scale = (")
    assert "compared with group uid=s3t00000" in page.text(".why")
    assert page.text(".call summary").endswith("calls look_up")
    assert page.value("document.querySelector('.call').open") is False
    assert "mean of each agent's turns" in page.text("#episode aside")


def test_the_episodes_of_a_search_are_one_tree(page: Page) -> None:
    found = page.value("""(() => {
      const turn = (index, node, parent) => ({ session: 0, index, node, parent, rewards: {} });
      const path = (uid, leaf, ...turns) => ({ uid, session: 0, leaf, effects: turns, off_path_turns: [] });
      const one = path("q", "2", turn(0, "1", null), turn(1, "2", "1"));
      const two = path("q", "3", turn(0, "1", null), turn(2, "3", "1"));
      const { nodes, roots } = treeNodes({ episodes: [one, two, path("r", "9", turn(0, "9", null))] }, two);
      return [roots.length, nodes.map((node) => [node.turns[0].node, node.turns.length, node.chosen])];
    })()""")
    assert found == [1, [["1", 1, True], ["2", 1, False], ["3", 1, True]]]


# `marl-verl watch`: runs that resume, stop or are damaged


STATUS = "document.querySelector('#status').innerText"
COUNT = "document.querySelector('#count').innerText"
READY = f"!{STATUS}.startsWith('marl-verl')"  # the first event
STEP = "document.querySelector('#f-step-text').innerText"


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


def test_an_act_is_edited_and_a_person_acts(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an evaluation that asks the person once, and returns episodes of the run."""
    folder, asked = run_folder(tmp_path / "run", steps=1), list[Any]()

    def evaluate(run: Path, overrides: list[str], **how: Any) -> SimpleNamespace:
        human.check(training=False, local=True)
        said = asyncio.run(human([{"role": "user", "content": f"see {PLANTED}"}], Random()))
        asked.append((overrides[1:], how["edit"][1:], how["episodes"], said))
        arm: dict[str, Any] = {"rewards": {"team, score": 0.5}, "difference": {"team, score": {"mean": 0.25}}}
        return SimpleNamespace(file=folder / "journals" / "step_00001.json", numbers={"pairings": [arm, arm]})

    monkeypatch.setattr(watch, "evaluate", evaluate)
    with watched(page, folder, READY):
        for selector, value in (("#p-act", "0"), ("#p-text", "north"), ("#p-number", "3"), ("#p-person", "mover")):
            page.set(selector, value)
        page.value("document.querySelector('#p-do').click()")
        page.wait("document.querySelector('#p-do').innerText === 'Act'")
        assert f"user: see {PLANTED}" in page.text("#p-question")
        page.size(400)
        page.wait("document.documentElement.scrollWidth <= 400")
        page.set("#p-text", "south")
        page.value("document.querySelector('#p-do').click()")
        page.wait("document.querySelector('#p-result table') !== null")
        assert page.text("#p-result").split()[-5:] == ["0.5", "0.25", "one", "pair", "only"]
        assert page.value("document.querySelector('#p-act').options.length") == 1  # only acts of the run are edited
    assert asked == [(["marl.policies.mover.script=human"], ("scout:0", "north"), 3, "south")]
