"""`marl-verl report`: the content of the page, what it leaves out, and damaged runs. tests/test_browser.py opens it."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from marl_verl_report import build, curves, overview, seeds, steps
from marl_verl_report.report import STEPS
from omegaconf import OmegaConf

from marl_verl.cli.main import main
from marl_verl.errors import MarlError
from marl_verl.inspect.run_files import use_plugin_files
from marl_verl.run.lock import is_running, locked
from marl_verl.run.run_dir import RunDir
from marl_verl.trainer.report import wilson
from tests.run_folder import PLANTED, many_steps, run_folder

Refused = Callable[..., str]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Refused:
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> str:
        assert main(["report", *words]) == 2
        output = capsys.readouterr()
        assert output.out == ""
        assert output.err.count("\n") == 1
        return output.err

    return call


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
    assert run["commands"] == [
        "marl-verl train 'my team.yaml' a.b=1",
        f"marl-verl explain {folder}",
        f"marl-verl replay {folder}",
    ]
    assert "name: grpo" in run["config"]["algorithm"]
    assert run["algorithm"].startswith("grpo: group (uid), sampler independent")


def test_the_advantages_are_those_of_training(folder: Path) -> None:
    use_plugin_files(folder, [])
    step = steps.read(folder, "train", 2)
    document = json.loads(gzip.decompress(RunDir(folder).stored_rows()[2].read_bytes()))
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
    assert [call["function"] for call in step["episodes"][0]["effects"] if call["effect"] == "call"] == [
        "tools:look_up"
    ]
    assert step["episodes"][0]["effects"][0]["length"] == 1
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
    assert build._hash(script) in rules["script-src"]
    assert "unsafe" not in rules["script-src"]
    assert re.search(r"\b(src|href)=\"(?!#|data:)", page) is None  # nothing is loaded


def test_what_does_not_fit_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run_folder(tmp_path / "long", steps=30, tasks=3)
    found = blobs(report(folder))
    assert sum(name.startswith("0-train") for name in found) == STEPS
    assert {"0-train-1", "0-train-30", "0-test-30"} <= set(found)
    few = blobs(report(folder, "--steps", "2"))
    assert {name for name in few if name[0] == "0"} == {
        f"0-{kind}-{step}" for kind in ("train", "test") for step in (1, 30)
    }
    use_plugin_files(folder, [])
    whole = steps.read(folder, "train", 1)
    small = steps.read(folder, "train", 1, limit=1)
    assert (len(whole["episodes"]), whole["left_out"]) == (5, 0)
    assert (len(small["episodes"]), small["left_out"]) == (2, 3)  # whole tasks, at least one


def test_a_metric_of_a_plugin_has_a_chart() -> None:
    names = ("tree/gain", "agent/a/amplification", "agent/b/amplification", "agent/a/rows", "policy/a/lr", "train/x")
    found = curves.lines([dict.fromkeys(("step", *names), 1.0)], 10)
    assert [(line["chart"], line["label"]) for line in found] == [
        ("tree/gain", "tree/gain"), ("amplification", "a"), ("amplification", "b")
    ]  # fmt: skip


def test_settings_that_differ_are_listed(tmp_path: Path) -> None:
    folders = [run_folder(tmp_path / name, steps=1) for name in "ab"]
    config = folders[1] / "config.yaml"
    changed = (
        config.read_text().replace("seed: 3", "seed: 4").replace("name: grpo", "name: grpo\n    options: {a: [1]}")
    )
    config.write_text(changed.replace("test_size: 40", "test_size: 50"))
    assert build.differences([overview.read(folder) for folder in folders]) == [
        ["task.test_size", "40", "50"], ["algorithm.options.a", None, "[1]"], ["seed", "3", "4"]
    ]  # fmt: skip


def test_intervals_of_the_curves() -> None:
    records = [{"step": at, "train/success": float(at % 2)} for at in range(1, 11)]
    records += [{"step": 10, "validation/success": 0.5, "validation/success_sampled": 0.5}]
    lines = {line["label"]: line for line in curves.lines(records, 40)}
    held_out, training = lines["held-out, greedy"], lines["training, sampled"]
    assert (held_out["low"][0], held_out["high"][0]) == pytest.approx(wilson(20, 40), abs=1e-4)
    assert (training["y"][0], training["low"][0]) == (1.0, None)  # of one value
    last = [0.0, 1.0, 0.0, 1.0, 0.0]
    error = 1.96 * (sum((value - 0.4) ** 2 for value in last) / 4 / 5) ** 0.5
    assert (training["y"][-1], training["high"][-1]) == pytest.approx((0.4, 0.4 + error), abs=1e-4)


def test_a_value_that_is_not_finite_is_a_gap_only() -> None:
    values = [1.0, float("nan"), 3.0, 3.0, float("inf"), 3.0]
    (line,) = curves.lines([{"step": at, "policy/a/grad_norm": value} for at, value in enumerate(values)], 40)
    assert line["y"] == [1.0, None, 2.0, pytest.approx(7 / 3, abs=1e-4), None, 3.0]
    assert line["high"][-1] == 3.0


@pytest.mark.parametrize("spike", [1e8, 1e16, 1e150])
def test_a_spike_changes_no_interval_of_later_windows(spike: float) -> None:
    values = [1.0 + 0.1 * (at % 2) for at in range(60)]
    records = [{"step": at, "policy/a/grad_norm": spike if at == 10 else value} for at, value in enumerate(values)]
    (line,) = curves.lines(records, 40)
    (without,) = curves.lines([{"step": at, "policy/a/grad_norm": value} for at, value in enumerate(values)], 40)
    assert [line[name][15:] for name in ("y", "low", "high")] == [without[name][15:] for name in ("y", "low", "high")]


def test_long_curves_keep_spikes_and_gaps() -> None:
    values = dict.fromkeys(range(1, 1001), 1.0) | {501: float("nan"), 702: 1e4, 703: -5.0}
    records = [{"step": at, "policy/a/grad_norm": value} for at, value in values.items()]
    every = curves.every_metric(records)["policy/a/grad_norm"]
    shown = dict(zip(every["x"], every["y"], strict=True))
    assert (shown[501], shown[702], shown[703]) == (None, 1e4, -5.0)
    assert every["x"][0] == 1
    assert every["x"] == sorted(every["x"])
    (line,) = curves.lines(records, 40)
    assert None in line["y"]


def test_runs_that_differ_only_in_their_seed_have_a_mean() -> None:
    def run(seed: int, *more: str, values: tuple[float, ...] = (0.0, 1.0)) -> dict[str, Any]:
        records = [{"step": at, "train/tokens": value} for at, value in enumerate(values)]
        words = ["train", "recipe.yaml", *more, f"marl.run.seed={seed}", f"marl.run.name=toy-{seed}"]
        return {
            "name": f"toy-{seed}",
            "seed": seed,
            "starts": [{"arguments": words}],
            "lines": curves.lines(records, 0),
        }

    alike = [run(0), run(1, values=(3.0, 4.0, 9.0)), run(2, values=(6.0, 10.0))]
    others = [run(3, "x=1"), {**run(4), "starts": []}, {**run(5), "starts": [{}]}]
    (group,) = seeds.groups([*others, *alike])
    assert (group["name"], group["runs"]) == ("toy (3 runs)", [3, 4, 5])
    (line,) = group["lines"]
    assert (line["chart"], line["x"], line["y"]) == ("Tokens per step", [0, 1], [3.0, 4.0])  # running means 0.5, 3.5, 8
    half = 4.30265 * 3 / 3**0.5
    assert (line["low"][0], line["high"][0]) == pytest.approx((3 - half, 3 + half), abs=1e-3)
    assert seeds.groups([*others, *alike[:2], alike[1]]) == []  # two seeds, one of them twice


def test_runs_of_one_name_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    folders = [tmp_path / end for end in ("a/x/run", "b/x/run", "other")]
    assert build.distinct(folders) == ["a/x/run", "b/x/run", "other"]
    assert build.distinct([tmp_path / "a/run", tmp_path / "a/run"]) == ["run", "run"]


def test_a_run_without_stored_steps(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", steps=1)
    for place in ("journals", "rows", "episodes"):
        for path in (folder / place).iterdir():
            path.unlink()
    (folder / "metrics.jsonl").unlink()  # nor has it begun to train
    (run,) = blobs(report(folder))["runs"]
    assert (run["lines"], run["stored"]) == ([], {"train": [], "test": []})
    assert run["commands"] == ["marl-verl train 'my team.yaml' a.b=1"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metrics.jsonl", "x\n"),
        ("metrics.jsonl", '{"a": 1}\n'),
        ("config.yaml", "[]"),
        ("config.yaml", "marl: x"),
        ("plugins.json", "[{"),
        ("starts.json", '[{"arguments": [1]}]'),
        ("journals/step_00001.jsonl", "{}"),
        ("rows/step_00001.json.gz", "x"),
    ],
)
def test_damaged_runs(refused: Refused, tmp_path: Path, name: str, content: str) -> None:
    folder = run_folder(tmp_path / "run", steps=1)
    (folder / name).write_text(content)
    assert "run" in refused("run")
    assert not (folder / "report.html").exists()


def test_a_mistaken_command(refused: Refused, tmp_path: Path) -> None:
    run_folder(tmp_path / "run", steps=1)
    assert "no run in 'rum': did you mean 'run'?" in refused("rum")
    assert "--megabytes must be from 3" in refused("run", "--megabytes", "1")
    assert "--steps must be at least 2" in refused("run", "--steps", "1")


def test_a_run_of_a_part_that_is_not_installed(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", steps=1)
    path = folder / "rows" / "step_00001.json.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()).replace(b'"grpo"', b'"their-grpo"')))
    step = blobs(report(folder))["0-train-1"]
    assert re.search("^Advantages are not explained: .*unknown algorithm 'their-grpo'", step["problem"])
    assert step["episodes"][0]["effects"][0]["rewards"] == {"role": 0.0, "team": 0.0}
    assert "row" not in step["episodes"][0]["effects"][0]


def test_metrics_that_are_being_written(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", steps=1)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "train/succ')
    assert blobs(report(folder))["runs"][0]["at"] == 1


def test_of_many_steps_few_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 steps with 100 turns each."""
    folder, read, asked = many_steps(tmp_path / "run"), steps.read, list[int]()

    def noted(folder: Path, kind: str, step: int, limit: int | None = None) -> dict[str, Any]:
        asked.append(step)
        return read(folder, kind, step, limit)

    monkeypatch.setattr(steps, "read", noted)
    page = report(folder)
    assert len(asked) == STEPS + 1  # and one validation
    assert {1, 1000} <= set(asked)
    assert blobs(page)["runs"][0]["stored"]["train"][-1] == 1000
    assert len(page.encode()) < 5e6


def test_the_commands_repeat_the_run_and_work(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", steps=3)
    arguments = ["my team.yaml", "marl.run.name=x", "++marl.run.dir=y", "marl.run.seed=2", "--plugin=my.py"]
    (folder / "starts.json").write_text(json.dumps([{"arguments": arguments}, {"arguments": ["--resume", "x"]}]))
    shutil.rmtree(folder / "journals")
    shutil.rmtree(folder / "rows")
    (folder / "checkpoints" / "step_2").mkdir(parents=True)
    (folder / "checkpoints" / "step_2" / "team.json").write_text("{}")
    commands = [
        "marl-verl train 'my team.yaml' marl.run.seed=2 --plugin=my.py",
        f"marl-verl train --resume {folder}",
        f"marl-verl eval {folder}",
        f"marl-verl replay {folder / 'episodes' / 'step_00003.jsonl'}",
    ]
    assert overview.read(folder)["commands"] == commands
    (folder / "checkpoints" / "step_2").rename(folder / "checkpoints" / "step_3")  # no step is left
    assert overview.read(folder)["commands"] == [commands[0], *commands[2:]]
    (folder / "starts.json").write_text(json.dumps([{"arguments": ["--resume", "x"]}]))
    assert overview.read(folder)["commands"] == commands[2:]


def test_the_options_of_training(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", steps=3)
    config = OmegaConf.load(folder / "config.yaml")
    policy = {"actor_rollout_ref": {"actor": {"optim": {"lr": 0.5}}}}
    config.data, config.policies = {"train_batch_size": 12}, {"scout": policy, "mover": policy}
    config.marl.policies.mover.frozen = True
    config.marl.agents.scout.instructions = r"Write \${x and more"
    OmegaConf.save(config, folder / "config.yaml")
    found = overview.read(folder)["config"]
    assert yaml.safe_load(found["training"])["training"] == {
        "trainer.total_training_steps": 3,
        "data.train_batch_size": 12,
        "learning rate": {"scout": 0.5},
    }
    assert "instructions: Write ${x and more" in found["agents"]


def test_a_run_that_has_stopped(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", steps=3)

    def state() -> tuple[bool, str | None]:
        (run,) = blobs(report(folder))["runs"]
        return run["running"], run["stopped"]

    assert state() == (False, "Stopped at step 3 of 3; it has no checkpoint to continue from")
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
    (folder / "train.log").touch()
    (folder / "checkpoints" / "step_2").mkdir(parents=True)
    (folder / "checkpoints" / "step_2" / "team.json").write_text("{}")
    how = f"its log is {folder / 'train.log'}; continue with marl-verl train --resume {folder}"
    assert state() == (False, f"Stopped at step 3 of 3; {how}")
    (folder / "summary.json").write_text("{}")
    assert state() == (False, None)
