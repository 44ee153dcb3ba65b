"""README's pair, from a folder outside the repository: trained and evaluated by the Python API, as in a notebook, then
replayed and explained by the commands, when the user's own files are gone. `test_kill.py` continues a run of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from marl_verl.testing.real import command, explain
from tests.e2e.conftest import Whole

pytestmark = pytest.mark.e2e


def test_a_script_trains_loads_evaluates_and_explains(whole: Whole) -> None:
    found = whole.script
    assert found["steps"] == found["metrics"] == [1, 2, 3, 4, 5, 6]
    assert found["summary"] == 6
    assert found["checkpoints"] == [5, 6]
    assert list(found["episodes"]) == ["1", "2", "3", "4", "5", "6"]
    assert set(found["validated"]) == {0, 2, 4, 6}
    assert 0 <= found["success"] <= 1
    assert found["played"] == [4, 10]
    assert found["rows"] == 4 * 2 * found["episodes"]["2"]  # four candidates for each of two turns
    assert found["difference"] is None


def test_nothing_is_left_running_or_lying_about(whole: Whole) -> None:
    assert whole.run.left == []


def test_its_own_reward_is_in_the_metrics_and_its_policies_learn(whole: Whole) -> None:
    assert all("agent/sender/reward/role" in line for line in whole.run.lines("train/success"))
    assert all(policy["weight_change"] > 0 for policy in whole.run.summary["policies"].values())


def test_its_episodes_are_replayed(whole: Whole) -> None:
    folder = whole.run.folder
    newest, file = ["--run", str(folder)], [str(folder / "journals" / "step_00003.jsonl")]
    for words, step in ((newest, 6), (file, 3)):
        listed = re.search(rf"\bs{step}t00000_0_\S+", command("replay", *words))
        assert listed
        shown = command("replay", *words, "--episode", listed[0])
        assert "sender" in shown
        assert "answerer" in shown


def test_its_advantages_are_explained(whole: Whole) -> None:
    records = explain(whole.run.folder, 3)
    assert {tuple(record["group"]) for record in records} == {("uid", "agent")}
    tasks = whole.run.lines("filter/tasks")[2]["filter/tasks"]  # of step 3, those of the refill included
    assert tasks >= 8
    assert len(records) == tasks * 4 * 2


def _episodes(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def test_exchanged_policies_act_for_each_other_in_an_evaluation(whole: Whole) -> None:
    """Each agent says what the other one's policy says in plain transformers, with the weights of that step."""
    policies = whole.script["policies"]
    assert policies == {"sender": "answerer", "answerer": "sender"}
    stored = whole.run.folder / "evaluations" / "step_5_swap-answerer-sender.jsonl"
    acts = [act for episode in _episodes(stored) for act in episode["journal"]["records"]]
    otherwise = 0
    for agent in policies:
        said = {name: _answers(whole.run.folder, name, acts, agent) for name in policies}
        assert said[policies[agent]] == [act["action"]["text"] for act in acts if act["agent"] == agent]
        otherwise += said[agent] != said[policies[agent]]
    assert otherwise  # the policies differ: the test can detect that they were not exchanged
    document = json.loads(command("replay", str(stored), "--episode", "g5t00000_0", "--json"))
    assert document["replay"]["score"] == _episodes(stored)[0]["score"]


def _answers(run: Path, policy: str, acts: list[dict[str, Any]], agent: str) -> list[str]:
    """What a policy of checkpoint 5 says, greedily, to the observations of an agent."""
    folder = run / "checkpoints" / "step_5" / "policies" / policy / "huggingface"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found = []
    for act in acts:
        if act["agent"] == agent:
            ids = tokenizer.apply_chat_template(
                act["observation"], add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
            message = model.generate(**ids, max_new_tokens=8, do_sample=False)[0, ids["input_ids"].shape[1] :]
            found.append(tokenizer.decode(message, skip_special_tokens=True))
    return found
