"""`marl-verl eval` on the real stack: the numbers of a run's own validations come back. `test_one_file_plugin.py` has
an evaluation with exchanged policies."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import LIMIT, Finished, left_behind, left_running, long, train

pytestmark = pytest.mark.e2e


def _eval(folder: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "marl_verl.cli.main", "eval", str(folder), "--json", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)  # nothing else is on standard output
    return document


def _validation(run: Finished, step: int) -> dict[str, Any]:
    (line,) = (line for line in run.lines("validation/success") if line["step"] == step)
    return line


def _episodes(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def _said(episode: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Who saw and said what; the weights' version is not the same, since these servers are never synced."""
    acts = episode["journal"]["records"]
    return [(act["agent"], act["observation"], act["action"]["text"], act["action"]["stop_reason"]) for act in acts]


@long  # the notebook of conftest.py evaluates a run, too
def test_an_evaluation_has_the_numbers_of_the_validation_at_its_step(inventory: Finished) -> None:
    """Same weights and seeds: through the checkpoint's folders here, by the weight sync there."""
    before = left_behind()
    found, then = _eval(inventory.folder, "--step", "6", "--episodes", "1"), _validation(inventory, 6)
    assert found["success"] == then["validation/success"]
    assert found["avg@1"] == found["pass@1"] == then["validation/success_sampled"]
    assert (found["eval_tasks"], found["step"], found["failed"]) == (300, 6, 0)
    for name, agent in found["agents"].items():
        assert (agent["policy"], agent["weights"], agent["turns"]) == (name, "step 6", 1.0)
        assert agent["rewards"]["team"] == pytest.approx(then[f"validation/agent/{name}/team"])
        assert 1 <= agent["response_length"] <= 8
    assert found["success_interval"][0] < found["success"] <= found["success_interval"][1]
    # what the team said is the same, too
    stored = _episodes(inventory.folder / "evaluations" / "step_6.jsonl")
    own = _episodes(inventory.folder / "episodes" / "step_00006.jsonl")
    assert [episode["id"] for episode in stored] == [episode["id"] for episode in own]
    assert [_said(episode) for episode in stored] == [_said(episode) for episode in own]
    assert left_running() == []
    assert left_behind() == before


@long
def test_an_untrained_asker_loses_what_was_learnt(inventory: Finished) -> None:
    trained = _validation(inventory, 12)["validation/success"]
    found = _eval(inventory.folder, "--untrained", "asker", "--tasks", "100", "--episodes", "4")
    assert found["success_interval"][1] < trained - 0.1
    assert {name: agent["weights"] for name, agent in found["agents"].items()} == {
        "holder": "step 12",
        "asker": "before training",
    }
    assert found["avg@4"] == pytest.approx(found["pass@1"])
    assert found["pass@1"] < found["pass@4"]
    for name in ("avg@4", "pass@1", "pass@4"):
        low, high = found[f"{name}_interval"]
        assert low < found[name] < high


KUHN = Path(__file__).parents[2] / "recipes" / "self_play" / "kuhn_cpu.yaml"


@long
def test_steps_of_self_play_play_each_other(tmp_path: Path) -> None:
    """Every pair plays all games, and a cross-play that is repeated has the same numbers."""
    run = train(tmp_path / "run", "trainer.total_training_steps=2", "trainer.save_freq=2", recipe=KUHN)
    assert run.code == 0, run.output
    before = left_behind()
    found = _eval(run.folder, "--cross-play", "--tasks", "12", "--episodes", "2")
    players = ["player@0", "player@2"]
    assert [(each["row"], each["column"]) for each in found["pairings"]] == [(a, b) for a in players for b in players]
    for each in found["pairings"]:
        assert each["games"] == each["wins"] + each["losses"] == 24  # Kuhn Poker has no draws
        assert each["outcome"]["first"] == pytest.approx(-each["outcome"]["second"])
    assert list(found["elo"]) == players
    assert _eval(run.folder, "--cross-play", "--tasks", "12", "--episodes", "2")["pairings"] == found["pairings"]
    assert left_running() == []
    assert left_behind() == before
