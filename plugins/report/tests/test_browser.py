"""The report in a real Chromium: no errors, filters, the step slider, trees, widths, colours, the keyboard.

These tests are skipped where no Chromium is installed; tests/test_report_command.py checks the content without one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from marl_verl_report import build, overview, steps
from marl_verl_report.serve import Server

from marl_verl.cli.main import main
from marl_verl.inspect.run_files import use_plugin_files
from marl_verl.run.lock import locked
from marl_verl.run.run_dir import RunDir
from tests.browser import Page, needs_chromium
from tests.run_folder import PLANTED, many_steps, run_folder

pytestmark = [needs_chromium, pytest.mark.slow]

CHOSEN = "document.querySelector('#list [aria-current]')"
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


def test_the_slider_keeps_the_task(page: Page) -> None:
    page.value("document.querySelectorAll('#list button')[2].click()")
    assert page.text("#episode h3") == "s3t00001_0"
    page.set("#f-step", "0")
    page.wait(f"{CHOSEN}?.dataset.id === 's1t00001_0'")
    assert page.text("#f-step-text") == "1 (1 of 3 shown, 3 stored)"
    page.set("#f-kind", "test")
    page.wait(f"{CHOSEN}?.dataset.id.startsWith('g3')")
    assert "Why advantage" not in page.text("#episode")


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


def test_the_keyboard_reaches_the_list(page: Page) -> None:
    page.press("Tab", 9)
    assert page.text(":focus") == "Skip to the episodes"
    page.value("document.querySelectorAll('#list button')[0].focus()")
    page.press("ArrowDown", 40)
    assert page.value("document.activeElement === document.querySelectorAll('#list button')[1]")
    unnamed = "[...document.querySelectorAll('input, select')].filter((each) => !each.labels.length).length"
    assert page.value(unnamed) == 0


def test_two_runs_are_compared(page: Page, runs: Path) -> None:
    page.open((runs / "both.html").as_uri())
    page.wait(DRAWN)
    legend = str(page.value("document.querySelector('#charts .legend').textContent"))
    assert "one: held-out, greedy" in legend
    assert "two: held-out, greedy" in legend
    page.set("#f-run", "1")
    page.wait(f"{CHOSEN}?.dataset.id.startsWith('s2')")
    page.value("document.querySelectorAll('.grid + details')[0].open = true")
    page.set("#metric", "train/success")
    page.wait("document.querySelectorAll('#any figure').length === 1")


def test_a_long_run_opens_with_3_s_of_a_processor(page: Page, tmp_path: Path) -> None:
    """A file with all of 1,000 steps of 100 turns; only the shown step is unpacked."""
    folder, output = many_steps(tmp_path / "long"), tmp_path / "long.html"
    run = overview.read(folder)
    use_plugin_files(folder, [])
    step = build.pack(steps.read(folder, "train", 1))
    blobs = {"library": build._library(), "runs": build.pack([run]), **{f"0-train-{at}": step for at in range(1, 1001)}}
    output.write_text(build.html([run], blobs, live=False), encoding="utf-8")
    page.call("Performance.enable", timeDomain="threadTicks")  # not wall time: other tests run at the same time
    page.open(output.as_uri())
    page.wait(DRAWN)
    used = {each["name"]: each["value"] for each in page.call("Performance.getMetrics")["metrics"]}
    assert 0 < used["TaskDuration"] < 3  # since the page was opened
    assert page.text("#f-step-text") == "1000 (1000 of 1000 shown, 1000 stored)"
    assert page.value("app.steps.size") == 1
    page.set("#f-step", "1")
    page.wait("app.steps.size === 2")
    assert main(["report", str(folder), "--output", str(output)]) == 0
    page.open(output.as_uri())
    assert page.text("#left-out").startswith("976 of 1000 stored steps are left out of this file")


def mouse(page: Page, *events: str, at: tuple[float, float]) -> None:
    for event in events:
        pressed = {} if event == "mouseMoved" else {"button": "left", "clickCount": 1}
        page.call("Input.dispatchMouseEvent", type=event, x=at[0], y=at[1], **pressed)


def middle(page: Page, element: str) -> tuple[float, float]:
    x, y, width, height = page.value(f"Object.values({element}.getBoundingClientRect().toJSON())")[:4]
    return x + width / 2, y + height / 2


PLOT = "document.querySelector('#charts .plot')"
SHOWN = f"{PLOT}._fullData.filter((each) => each.visible === true && each.showlegend).map((each) => each.name)"


def test_a_live_update_keeps_a_zoom_and_hidden_lines(page: Page, tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "running", steps=4)
    with locked(folder), Server(folder) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page.allowed = (*page.allowed, server.address)
        page.open(server.address)
        page.wait(DRAWN)
        x, y = middle(page, f"{PLOT}.querySelector('.nsewdrag')")
        mouse(page, "mouseMoved", "mousePressed", at=(x - 60, y))
        mouse(page, "mouseMoved", at=(x, y))
        mouse(page, "mouseMoved", "mouseReleased", at=(x + 60, y))
        page.wait(f"{PLOT}.layout.xaxis.autorange === false")
        zoomed = page.value(f"{PLOT}._fullLayout.xaxis.range")
        legend = middle(page, f"{PLOT}.querySelector('.legendtoggle')")
        mouse(page, "mouseMoved", "mousePressed", "mouseReleased", at=legend)
        page.wait(f"{SHOWN}.length === 2")
        RunDir(folder).metrics(9, {"train/success": 0.875})
        page.wait(f"{PLOT}._fullData.some((each) => each.x.includes(9))")
        assert page.value(f"{PLOT}._fullLayout.xaxis.range") == zoomed
        assert page.value(SHOWN) == ["held-out, sampled", "training, sampled"]
        page.open("about:blank", ready=False)
        server.shutdown()
