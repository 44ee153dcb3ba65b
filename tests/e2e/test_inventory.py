"""What a user has after `marl-verl train`: a team that learned, and a run directory that tells how."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.e2e.conftest import Finished, left_running

pytestmark = pytest.mark.e2e


def test_the_team_learns_beyond_the_confidence_interval(inventory: Finished) -> None:
    summary = inventory.summary
    assert summary["eval_tasks"] == 300
    assert summary["success_after_interval"][0] > summary["success_before_interval"][1] + 0.1, inventory.output


def test_both_policies_changed(inventory: Finished) -> None:
    policies = inventory.summary["policies"]
    assert set(policies) == {"holder", "asker"}
    for policy in policies.values():
        assert policy["parameters"] > 80_000
        assert policy["weight_change"] > 0.001


def test_the_run_directory_is_complete(inventory: Finished) -> None:
    for name in ("config.yaml", "plugins.json", "metrics.jsonl", "train.log", "curve.png", "summary.json"):
        assert (inventory.folder / name).stat().st_size > 0, name
    header, *episodes = (inventory.folder / "episodes" / "step_00012.jsonl").read_text().splitlines()
    assert json.loads(header)["split"] == "test"
    assert len(episodes) == 4
    assert [turn["agent"] for turn in json.loads(episodes[0])["turns"]] == ["holder", "asker"]
    assert inventory.lines("policy/asker/entropy")[0]["policy/asker/entropy"] > 0
    summary = inventory.summary
    for key in ("steps", "seconds_total", "seconds_to_first_step", "seconds_per_step"):
        assert summary[key] > 0, key
    assert summary["steps"] == 12
    assert {"reward", "zero_variance", "response_length"} <= set(summary["agents"]["holder"])


def test_what_a_tracker_writes_is_in_the_run_directory(inventory: Finished) -> None:
    """W&B's files, offline; `test_kill.py` reads those of TensorBoard."""
    (file,) = (inventory.folder / "wandb").glob("offline-run-*/run-*.wandb")
    content = file.read_bytes()  # records in a binary format, with the keys as text
    for metric in ("agent/holder/reward", "policy/asker/entropy", "validation/success", "seconds/step"):
        assert content.count(metric.encode()) > 0, metric
    assert not (inventory.folder.parent / "wandb").exists()


def test_every_step_is_stored_and_explained(inventory: Finished) -> None:
    files = sorted((inventory.folder / "rows").iterdir())
    assert [path.name for path in files] == [f"step_{step:05d}.json.gz" for step in range(1, 13)]
    command = [sys.executable, "-m", "marl_verl.cli.main", "explain", "--run", str(inventory.folder), "--step", "1"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")  # no word of a difference from training
    records, stored = json.loads(done.stdout), json.loads(gzip.decompress(files[0].read_bytes()))
    assert [record["advantage"] for record in records] == stored["advantage"]
    assert any(stored["advantage"])
    for record in records:
        assert list(record["group"]) == ["uid", "turn", "agent", "slot"]
        assert record["group"]["agent"] == record["agent"]
        assert {key.split("_")[0] for key in record["members"]} == {record["group"]["uid"]}


def test_every_step_can_be_replayed(inventory: Finished) -> None:
    files = sorted((inventory.folder / "journals").iterdir())
    assert [path.name for path in files] == [f"step_{step:05d}.jsonl" for step in range(1, 13)]
    stored = gzip.decompress((inventory.folder / "rows" / "step_00012.json.gz").read_bytes())
    rows = {(row["uid"], row["session"]) for row in json.loads(stored)["rows"]}
    header, *lines = map(json.loads, files[-1].read_text().splitlines())
    lines = [line for line in lines if "failure" not in line]
    assert (header["step"], header["split"], header["workflow"]["name"]) == (12, "train", "inventory")
    assert {(line["uid"], line["session"]) for line in lines} == rows
    command = [sys.executable, "-m", "marl_verl.cli.main", "replay", "--run", str(inventory.folder)]
    for line in lines[:: len(lines) // 3]:
        done = subprocess.run(
            [*command, "--episode", line["id"], "--json"], capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["replay"]["score"] == line["score"]


def test_the_output_is_short_and_has_the_table(inventory: Finished) -> None:
    assert "team success, greedy" in inventory.output
    assert "next, try:" in inventory.output
    lines = inventory.output.splitlines()  # how many steps are printed depends on how long they take
    assert len([line for line in lines if not line.startswith("step ")]) < 40, inventory.output
    assert len(lines) < 40 + 12 + 6, inventory.output


@pytest.mark.parametrize("policy", ["holder", "asker"])
def test_a_checkpoint_loads_in_plain_transformers(inventory: Finished, policy: str) -> None:
    folder = inventory.folder / inventory.summary["checkpoint"] / "policies" / policy / "huggingface"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    episode = json.loads((inventory.folder / "episodes" / "step_00012.jsonl").read_text().splitlines()[1])
    act = next(act for act in episode["journal"]["records"] if act["agent"] == policy)  # each agent has its own policy
    ids = tokenizer.apply_chat_template(
        act["observation"], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    generated = model.generate(**ids, max_new_tokens=8, do_sample=False)[0, ids["input_ids"].shape[1] :]
    # the last validation was played greedily with these weights
    assert tokenizer.decode(generated, skip_special_tokens=True) == act["action"]["text"]


def test_nothing_is_left_running_or_lying_about(inventory: Finished) -> None:
    assert left_running() == []
    assert inventory.left == []
