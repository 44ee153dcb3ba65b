"""`marl-verl compare`: paired runs over seeds, when it ends, and what it says. Training is replaced by a function."""

import json
import math
import random
import time
from pathlib import Path
from typing import Any

import pytest
from marl_verl_report import decide
from marl_verl_report.decide import estimate, quantile
from omegaconf import OmegaConf

from marl_verl import api
from marl_verl.cli.main import main
from marl_verl.errors import MarlError
from marl_verl.run.run_dir import locked


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A recipe whose runs succeed in 0.2 + 0.5 * quality, -+ 0.1 by seed; `fail=N`: the run of seed N fails."""

    def train(recipe: Path, overrides: list[str], plugins: Any = ()) -> None:
        options = dict(override.split("=", 1) for override in overrides)
        seed, folder = int(options["marl.run.seed"]), Path(options["marl.run.dir"], options["marl.run.name"])
        print("training")
        if options.get("fail") == str(seed):
            raise MarlError("no such task")
        time.sleep(float(options.get("sleep", 0)))
        success = 0.2 + 0.5 * float(options.get("quality", 1)) + random.Random(f"{overrides}").uniform(-0.1, 0.1)
        folder.mkdir(parents=True)
        lines = [{"step": 0, "validation/success": 0.1}, {"step": 2, "validation/success": success}]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        words = [str(recipe), *overrides, *(f"--plugin={file}" for file in plugins)]
        (folder / "starts.json").write_text(json.dumps([{"arguments": words}]))
        (folder / "summary.json").write_text("{}")

    def compose(recipe: Path, overrides: Any) -> Any:
        return OmegaConf.create({"trainer": {"test_freq": -1 if "trainer.test_freq=-1" in overrides else 10}})

    monkeypatch.setattr(api, "train", train)
    monkeypatch.setattr("marl_verl_report.compare.compose", compose)
    monkeypatch.setattr("marl_verl_report.arms._import_once", lambda jobs: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "team.yaml").write_text("defaults: [marl_trainer, _self_]\n")
    (tmp_path / "variants.yaml").write_text("worse: {about: A worse team., overrides: [quality=0]}\n")
    return "team.yaml"


def test_a_clear_difference_ends_at_the_first_look(recipe: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", recipe, "--variant worse", "--seeds", "30", "x=1"]) == 0
    output = capfd.readouterr().out
    assert all(part in output for part in ("A is higher.", "over 10 seeds", "20 of at most 60 runs"))
    assert "training" not in output
    folder = Path("runs/compare-team-team")
    written = json.loads((folder / "compare.json").read_text())
    assert (written["verdict"], written["difference"]["n"]) == ("higher", 10)
    assert written["level"] == pytest.approx(1 - 0.05 / 3)
    assert "validation/success" in (folder / "compare.svg").read_text()
    first = (folder / "compare.svg").read_bytes()
    assert json.loads((folder / "B-3" / "starts.json").read_text())[0]["arguments"][1:] == [
        *("quality=0", "trainer.save_freq=-1", "marl.run.keep_journals=0", "marl.run.keep_rows=0", "x=1"),
        *("marl.run.seed=3", f"marl.run.dir={folder}", "marl.run.name=B-3"),
    ]
    made = (folder / "A-0" / "summary.json").stat().st_mtime_ns
    assert main(["compare", recipe, "--variant worse", "--seeds", "30", "x=1"]) == 0  # nothing is trained again
    assert (folder / "A-0" / "summary.json").stat().st_mtime_ns == made
    assert (folder / "compare.svg").read_bytes() == first
    capfd.readouterr()
    assert main(["compare", recipe, "--variant worse", "--seeds", "30", "x=2"]) == 2
    assert "is a run of another command" in capfd.readouterr().err
    assert main(["compare", recipe, "trainer.test_freq=-1", "--dir", "d"]) == 2
    assert "set it, or --measure, for runs with validation/success" in capfd.readouterr().err
    assert not Path("d").exists()


def test_what_is_not_decided_says_how_many_seeds_would(recipe: str, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["compare", recipe, "y=1", "--seeds", "6", "--dir", "d", "--plugin", "own.py"]
    assert main([*words, "--measure", "gain:validation/success"]) == 0
    output = capfd.readouterr().out
    assert all(part in output for part in ("Undecided: if mean and deviation stayed", "over 6 seeds"))
    with locked(Path("d")):
        assert main([*words, "--margin", "0.3"]) == 2
    assert "'d' is in use by process" in capfd.readouterr().err
    assert main([*words, "--margin", "0.3"]) == 0
    assert "No difference above 0.3." in capfd.readouterr().out


def test_a_failed_run_ends_the_others(recipe: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", recipe, "fail=1 sleep=0", "--seeds", "4", "sleep=900", "--dir", "d", "--jobs", "5"]) == 2
    assert "run 'B-1': no such task (log: d/B-1.log)" in capfd.readouterr().err
    assert not list(Path("d").glob("*/summary.json"))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["team", "b.yaml"], "arm 'team' has no recipe"),
        (["team.yaml", "--variant worst"], "unknown variant 'worst': did you mean 'worse'?"),
        (["team.yaml", "--resume x"], "unknown option '--resume'"),
        (["team.yaml", "x=1", "--seeds", "1"], "--seeds must be at least 2"),
        (["team.yaml", "x=1", "--measure", "least:a"], "unknown form of a measure 'least'"),
        (["team.yaml", "x=1", "--measure", "validation/sucess"], "did you mean 'validation/success'?"),
    ],
)
def test_mistakes(recipe: str, capfd: pytest.CaptureFixture[str], words: list[str], reason: str) -> None:
    assert main(["compare", *words]) == 2
    assert reason in capfd.readouterr().err


def test_the_interval_by_hand() -> None:
    value = estimate([1.0, 2.0, 3.0, 4.0, 5.0])  # s^2 = 2.5, t(4) = 2.77645, half = 2.77645 sqrt(0.5)
    assert (value.mean, value.n, value.deviation) == (3.0, 5, pytest.approx(math.sqrt(2.5)))
    assert value.high - 3.0 == pytest.approx(3.0 - value.low) == pytest.approx(1.963246, abs=1e-5)
    assert math.isinf(estimate([0.5]).high)


def test_the_quantiles_are_those_of_student_s_t() -> None:
    """Closed forms for 1, 2 and 4 degrees of freedom (Shaw 2006); a table's values."""
    a = 4 * 0.975 * 0.025
    four = 2 * math.sqrt(math.cos(math.acos(math.sqrt(a)) / 3) / math.sqrt(a) - 1)
    assert quantile(1) == pytest.approx(math.tan(math.pi * 0.475))
    assert quantile(2) == pytest.approx(0.95 * math.sqrt(2 / a))
    assert quantile(4) == pytest.approx(four)
    assert [quantile(n, 0.99) for n in (5, 19)] == pytest.approx([4.03214, 2.86093], abs=1e-5)
    assert quantile(decide.MOST) == pytest.approx(1.960201, abs=1e-6)


def test_what_an_interval_decides() -> None:
    assert decide.decided(estimate([0.2, 0.3, 0.25, 0.2])) == "higher"
    assert decide.decided(estimate([-value for value in (0.2, 0.3, 0.25, 0.2)])) == "lower"
    even = estimate([-0.1, 0.1, -0.05, 0.05])
    assert (decide.decided(even), decide.decided(even, 0.2), decide.decided(even, 0.1)) == (None, "within", None)
    more = decide.needed(even, 0.95, 0.1)
    assert more is not None
    assert quantile(more - 1) * even.deviation / math.sqrt(more) < 0.1
    assert quantile(more - 2) * even.deviation / math.sqrt(more - 1) >= 0.1
    assert decide.needed(even, 0.95) is None  # a mean of 0 is never seen to differ
    for mean, n in ((0.05, 10), (0.02, 20), (0.3, 10)):
        more = decide.needed(decide.Estimate(mean, -1.0, 1.0, n, 0.12), None)
        assert more is not None
        levels = {seeds: decide.level(len(decide.looks(seeds))) for seeds in range(n, more + 1)}
        *halves, last = (quantile(seeds - 1, levels[seeds]) * 0.12 / math.sqrt(seeds) for seeds in levels)
        assert last < mean
        assert all(half >= mean for half in halves)


def test_looks_share_the_error() -> None:
    """Of normal differences with mean 0, at most 5 % are called different at any of three looks: here about 4 %."""
    assert decide.looks(20) == [10, 20]
    drawn, wrong = random.Random(0), 0
    for _ in range(2000):
        pairs = [drawn.gauss(0, 1) for _ in range(30)]
        wrong += any(decide.decided(estimate(pairs[:n], decide.level(3))) for n in decide.looks(30))
    assert 0.02 < wrong / 2000 <= 0.05
