"""README's pair, from a folder outside the repository: trained and evaluated by the Python API, as in a notebook, then
continued, replayed and explained by the commands, when the user's own files are gone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Any, NamedTuple

import pytest

from marl_verl.testing.real import command, explain, resume
from tests.e2e.conftest import LIMIT, ROOT, Finished, left_behind, left_running

pytestmark = pytest.mark.e2e

SCRIPT = """
import asyncio, json, pathlib
from marl_verl import evaluate, explain, load_run, train

SMALL = {
    "trainer.total_training_steps": 2, "trainer.test_freq": 2, "trainer.save_freq": 1, "marl.task.test_size": 20,
    "data.train_batch_size": 8, "actor_rollout_ref.actor.ppo_mini_batch_size": 8,
    "marl.policies.sender.tiny.steps": 20, "marl.policies.answerer.tiny.steps": 20,
    "marl.run.dir": "runs", "marl.run.name": "mine",
}

async def notebook():
    steps = []
    run = train("my_team.yaml", SMALL, progress=lambda event: event["event"] == "step" and steps.append(event["step"]))
    for name in ("my_team.py", "my_team.yaml"):
        pathlib.Path(name).unlink()
    again = load_run(run)
    found = await asyncio.to_thread(evaluate, run, tasks=10, greedy_only=True, progress=False)
    rows = explain(run, step=2)
    return {
        "steps": steps,
        "metrics": [line["step"] for line in again.metrics if "train/success" in line],
        "summary": again.summary["steps"],
        "checkpoints": sorted(again.checkpoints),
        "episodes": {step: len(episodes) for step, episodes in again.episodes.items()},
        "validated": sorted(again.validations),
        "success": found.success,
        "played": [len(list(found.episodes())), found.numbers["eval_tasks"]],
        "rows": len(rows),
        "difference": rows.difference,
    }

print(json.dumps(asyncio.run(notebook())))
"""


class Ended(NamedTuple):
    """What the script printed, and the run after one more step."""

    script: dict[str, Any]
    run: Finished


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    place, before = tmp_path_factory.mktemp("mine"), left_behind()
    for name in ("my_team.py", "my_team.yaml"):
        shutil.copy(ROOT / "recipes" / "quickstart" / name, place)
    (place / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=place, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert left_running() == []
    assert left_behind() <= before
    continued = resume(place / "runs" / "mine", "trainer.total_training_steps=3")
    assert continued.code == 0, continued.output
    return Ended(json.loads(done.stdout), continued)  # nothing else is printed


def test_a_script_trains_loads_evaluates_and_explains(ended: Ended) -> None:
    found = ended.script
    assert found["steps"] == found["metrics"] == [1, 2]
    assert found["summary"] == 2
    assert found["checkpoints"] == [1, 2]
    assert list(found["episodes"]) == ["1", "2"]
    assert set(found["validated"]) == {0, 2}
    assert 0 <= found["success"] <= 1
    assert found["played"] == [4, 10]
    assert found["rows"] == 2 * found["episodes"]["2"]
    assert found["difference"] is None


def test_it_goes_on(ended: Ended) -> None:
    lines = ended.run.lines("train/success")
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all("agent/sender/reward/role" in line for line in lines)
    assert all(policy["weight_change"] > 0 for policy in ended.run.summary["policies"].values())


def test_its_episodes_are_replayed(ended: Ended) -> None:
    folder = ended.run.folder
    for words in (["--run", str(folder)], [str(folder / "journals" / "step_00003.jsonl")]):
        assert "s3t00000_0" in command("replay", *words)
        shown = command("replay", *words, "--episode", "s3t00000_0")
        assert "sender" in shown
        assert "answerer" in shown


def test_its_advantages_are_explained(ended: Ended) -> None:
    records = explain(ended.run.folder, 3)
    assert {tuple(record["group"]) for record in records} == {("uid", "agent")}
    assert len(records) == 8 * 8 * 2
