"""A verl script trains with `python -m marl_verl.main_ppo`: rows, scores, steps. A benchmark compares with verl."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import long

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
ROWS, BATCH, EPISODES = 640, 32, 8


@long
def test_a_script_of_verl_trains(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.benchmarks.from_verl", str(tmp_path), "--limit", "1"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=600)
    check(tmp_path / "ours-0")


def check(run: Path) -> None:
    """One epoch over the rows, each answer scored as GSM8K is."""
    seen, right = set(), 0
    files = sorted((run / "journals").glob("step_*.jsonl"))
    assert len(files) == ROWS // BATCH
    for file in files:
        _, *lines = map(json.loads, file.read_text().splitlines())
        episodes = [line for line in lines if "score" in line]
        assert len(episodes) == BATCH * EPISODES
        for episode in episodes:
            task = episode["task"]
            a, b = map(int, re.findall(r"\d+", task["prompt"]))
            said = re.findall(r"#### (\d+)", episode["answer"])
            assert episode["score"] == float(said[-1:] == [str(a + b)])
            seen.add(task["id"])
            right += episode["score"]
    assert len(seen) == ROWS
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    shares = [line["train/success"] for line in metrics if "train/success" in line]
    assert sum(shares) * BATCH * EPISODES == pytest.approx(right)
    assert right > 0
