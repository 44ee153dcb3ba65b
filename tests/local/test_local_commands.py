"""The commands that read a run directory, on one that was trained in this process."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from marl_verl_testing.real import Finished, rows

from tests.local.training import INVENTORY, episodes, train
from tests.served import answers

pytest.importorskip("verl")
pytestmark = pytest.mark.slow

POLICIES = ("holder", "asker")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return train(tmp_path_factory.mktemp("runs") / "run", INVENTORY, "trainer.save_freq=1", steps=2)


def test_explain(run: Finished, command: Callable[..., str]) -> None:
    records = json.loads(command("explain", run.folder, "--step", "2", "--json"))
    keys = {f"{row['uid']}_{row['session']}_{row['index']}" for row in rows(run.folder, 2) if not row["padding"]}
    assert {record["key"] for record in records} == keys
    key = min(keys)
    assert f"row {key}" in command("explain", run.folder, "--step", "2", "--row", key)


def test_replay(run: Finished, command: Callable[..., str]) -> None:
    listed = re.search(r"\bs2t\d+_\S+", command("replay", run.folder))
    assert listed
    journal = run.folder / "journals" / "step_00002.jsonl"
    shown = json.loads(command("replay", journal, "--episode", listed[0], "--json"))
    assert shown["replay"]["score"] == next(e["score"] for e in episodes(run, 2) if e.get("id") == listed[0])


def test_eval_and_export(run: Finished, command: Callable[..., str], tmp_path: Path) -> None:
    """Exported models say in transformers what the policies of that step say in an evaluation."""
    options = ("--step", "1", "--tasks", "3", "--episodes", "2", "--json")
    numbers = json.loads(command("eval", run.folder, *options))
    assert (numbers["step"], numbers["eval_tasks"], numbers["episodes"]) == (1, 3, 2)
    stored = (run.folder / "evaluations" / "step_1.jsonl").read_text().splitlines()[1:]
    acts = [act for episode in map(json.loads, stored) for act in episode["journal"]["records"]]
    for policy in POLICIES:
        folder = tmp_path / policy
        done = json.loads(
            command("export", run.folder, "--policy", policy, "--step", "1", "--output", folder, "--json")
        )
        assert done["step"] == 1
        own = [act for act in acts if act["agent"] == policy]
        assert len(own) >= 3
        assert answers(folder, own) == [act["action"]["text"] for act in own]
