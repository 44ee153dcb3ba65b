"""`marl-verl eval --cross-play` on the real stack. `test_whole.py` has an evaluation with exchanged policies."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import LIMIT, left_behind, left_running, long, train

pytestmark = pytest.mark.e2e


def _eval(folder: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "marl_verl.cli.main", "eval", str(folder), "--json", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)  # nothing else is on standard output
    return document


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
