"""`marl-verl report`: the content of the page, what it leaves out, and damaged runs. tests/test_browser.py opens it."""

import base64
import gzip
import hashlib
import json
import os
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from marl_verl_inspect.files import use_plugin_files
from marl_verl_report import curves, steps

from marl_verl.cli.main import main
from marl_verl.errors import MarlError
from marl_verl.run.run_dir import RunDir, is_running, locked
from tests.run_folder import PLANTED, run_folder

Refused = Callable[..., str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_folder(tmp_path_factory.mktemp("runs") / "one")


def blobs(page: str) -> dict[str, Any]:
    """What the page unpacks, by name."""
    found = re.findall(r'<script type="text/plain" id="blob-([\w-]+)">([\w+/=]*)</script>', page)
    packed = {name: base64.b64decode(text) for name, text in found if name != "library"}
    return {
        name: json.loads(gzip.decompress(text) if text[:2] == b"\x1f\x8b" else text) for name, text in packed.items()
    }


def report(folder: Path, *words: str) -> str:
    assert main(["report", str(folder), *words]) == 0
    return (folder / "report.html").read_text()


def test_the_page_has_the_runs_and_their_steps(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = report(folder)
    assert capsys.readouterr().out == f"report {folder / 'report.html'} ({len(page.encode()) / 1e6:.1f} MB)\n"
    assert len(page.encode()) < 5e6
    found = blobs(page)
    assert set(found) == {"data", "runs", *(f"0-{kind}-{step}" for kind in ("train", "test") for step in (1, 2, 3))}
    (run,) = found["runs"]
    assert (run["name"], run["at"], run["steps"], run["seed"]) == ("one", 3, 3, 3)
    assert run["plugins"][0]["version"] == "9.8.7"
    assert run["starts"][0]["arguments"] == ["my team.yaml", "a.b=1"]
    assert "name: grpo" in run["config"]["algorithm"]
    assert run["algorithm"].startswith("grpo: {sampler: independent, rewards: ")


def test_the_advantages_are_those_of_training(folder: Path) -> None:
    use_plugin_files(folder, [])
    step = steps.read(folder, "train", 2)
    document = json.loads(gzip.decompress(RunDir(folder).stored("rows")[2].read_bytes()))
    used = {
        f"{row['uid']}_{row['session']}_{row['index']}": advantage
        for row, advantage in zip(document["rows"], document["advantage"], strict=True)
    }
    shown = {}
    for episode in step["episodes"]:
        for turn in (*(each for each in episode["effects"] if "rewards" in each), *episode["off_path_turns"]):
            row = turn["row"]
            shown[row["key"]] = row["advantage"]
            assert row["advantage"] == (row["return"] - row["baseline"]) / row["scale"]
            assert [row["key"], row["return"], row["advantage"]] in step["groups"][row["group"]]["members"]
    assert shown == used
    assert len(set(used.values())) > 2
    effects = step["episodes"][0]["effects"]
    assert [call["function"] for call in effects if call["effect"] == "call"] == ["tools:look_up"]
    assert effects[0]["length"] == 1
    assert step["failures"][0]["failure"] == "timeout"
    assert steps.read(folder, "test", 2)["episodes"][0]["id"] == "g2t00000_0"


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[dict[str, str | None]] = []
        self.images = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.images += tag == "img"
        if tag == "script":
            self.scripts.append(dict(attrs))


def test_planted_markup_is_nowhere_markup(tmp_path: Path) -> None:
    """In texts, task ids, agent names and the name of the run."""
    page = report(run_folder(tmp_path / "<script>x", agents=(f"scout{PLANTED}", "mover")))
    assert "planted" not in page
    found = _Elements()
    found.feed(page)
    assert found.images == 0
    assert [each for each in found.scripts if each.get("type") != "text/plain"] == [{}]  # the page's own
    assert "<title>&lt;script&gt;x - marl-verl report</title>" in page
    assert PLANTED in blobs(page)["0-train-1"]["episodes"][0]["effects"][0]["agent"]


def test_only_the_scripts_of_the_page_may_run(folder: Path) -> None:
    page = report(folder)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    rules = dict(rule.split(" ", 1) for rule in policy[1].split("; "))
    assert rules["default-src"] == rules["connect-src"] == rules["base-uri"] == "'none'"
    script = page.rpartition("<script>")[2].partition("</script>")[0]
    assert f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in rules["script-src"]
    assert "unsafe" not in rules["script-src"]
    assert re.search(r"\b(src|href)=\"(?!#|data:)", page) is None  # nothing is loaded


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("metrics.jsonl", "x\n", "run 'run' is damaged: "),
        ("config.yaml", "marl: x", "run 'run' is damaged: "),
        ("rows/step_00001.json.gz", "x", "'run/rows/step_00001.json.gz' is not JSON: "),
    ],
)
def test_damaged_runs(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = run_folder(tmp_path / "run", steps=1)
    (folder / name).write_text(content)
    assert reason in refused("report", "run")
    assert not (folder / "report.html").exists()


def test_a_run_that_has_stopped(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", steps=3)

    def state() -> tuple[bool, str | None]:
        (run,) = blobs(report(folder))["runs"]
        return run["running"], run["stopped"]

    stopped = f"Stopped at step 3 of 3, see {folder}/train.log."
    assert state() == (False, f"{stopped} No checkpoint was saved yet: start a new run")
    with locked(folder) as lock:
        assert state() == (True, None)
        assert is_running(folder)
        with pytest.raises(MarlError, match="in use"), locked(folder):  # the check has not released it
            pass
        os.ftruncate(lock, 0)
    assert not is_running(folder)
    (folder / ".lock").write_text("1 on another-machine\n")
    assert is_running(folder)  # for all that is known here
    (folder / ".lock").unlink()
    (step := folder / "checkpoints" / "step_2").mkdir(parents=True)
    (step / "team.json").write_text("{}")
    assert state() == (False, f"{stopped} Continue from step 2 with: marl-verl train --resume {folder}")
    (folder / "summary.json").write_text("{}")
    assert state() == (False, None)


def test_a_spike_is_drawn_also_in_a_long_run() -> None:
    norms = curves.every_metric([{"step": step, "norm": 1.0 + 89 * (step == 1501)} for step in range(2500)])["norm"]
    assert (len(norms["y"]), norms["x"][norms["y"].index(90.0)]) == (834, 1501)
