"""README's pair, from a folder outside the repository: trained and evaluated by the Python API, as in a notebook. The
trainer is killed in step 3 on Ray and vLLM; one process continues the run. The team learns, and its run directory
tells how, when the user's own files are gone."""

import json
from pathlib import Path
from typing import Any

import pytest

from marl_verl import explain, load_run
from tests.e2e.conftest import FOUR_STEPS, Finished, Whole, actions
from tests.served import answers
from tests.weights import change

pytestmark = pytest.mark.e2e

STEPS, TASKS = range(1, 5), FOUR_STEPS["data.train_batch_size"]


def test_a_script_trains_loads_evaluates_and_explains(whole: Whole) -> None:
    printed = whole.script
    why = "the trainer was killed (signal 9, perhaps out of memory) while writing a checkpoint in step 3"
    assert printed["died"].startswith(f"{why}. Continue from step 2 with: marl-verl train --resume runs/mine")
    assert printed["steps"] == printed["metrics"] == [*STEPS]
    assert (printed["summary"], printed["checkpoints"]) == (4, [2, 3, 4])
    assert set(printed["validated"]) == {0, 2, 4}
    assert 0 <= printed["success"] <= 1
    assert printed["played"] == [4, 10]
    assert printed["rows"] == 4 * 2 * printed["episodes"]["2"]  # four candidates for each of two turns
    assert printed["difference"] is None
    assert whole.run.left == []


def test_both_policies_changed(whole: Whole) -> None:
    summary = load_run(whole.run.folder).summary or {}
    assert summary["eval_tasks"] == 40
    assert summary["policies"] == ["sender", "answerer", "big"]
    for name in ("sender", "answerer"):
        assert change(whole.run.folder, name) > 0.001
    assert all("agent/sender/reward/role" in line for line in whole.run.lines("train/success"))


def test_the_run_directory_is_complete(whole: Whole) -> None:
    folder, summary = whole.run.folder, load_run(whole.run.folder).summary or {}
    for name in ("config.yaml", "plugins.json", "metrics.jsonl", "train.log", "summary.json"):
        assert (folder / name).stat().st_size > 0, name
    assert all(summary[key] > 0 for key in ("steps", "seconds_total", "seconds_to_first_step", "seconds_per_step"))
    for place, suffix in (("journals", "jsonl"), ("rows", "json.gz")):
        assert sorted(path.name for path in (folder / place).iterdir()) == [f"step_{n:05d}.{suffix}" for n in STEPS]
    files = (folder / "wandb").glob("offline-run-*/run-*.wandb")
    content = b"".join(file.read_bytes() for file in files)  # records in a binary format, with the keys as text
    for metric in ("agent/sender/reward", "policy/answerer/entropy", "validation/success", "seconds/step"):
        assert metric.encode() in content, metric


def test_its_advantages_are_explained(whole: Whole) -> None:
    records = explain(whole.run.folder, step=2)
    assert {tuple(record["group"]) for record in records} == {("uid", "agent")}
    tasks = whole.run.lines("filter/tasks")[1]["filter/tasks"]  # of step 2, those of the refill included
    assert tasks >= TASKS
    assert len(records) == len(load_run(whole.run.folder).rows[2]["rows"]) == tasks * 4 * 2
    assert any(record["advantage"] for record in records)


def _episodes(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def test_exchanged_policies_act_for_each_other_in_an_evaluation(whole: Whole) -> None:
    """Each agent says what the other one's policy says in plain transformers, with the weights of that step."""
    policies = whole.script["policies"]
    assert policies == {"sender": "answerer", "answerer": "sender"}
    stored = whole.run.folder / "evaluations" / "step_3_swap-answerer-sender.jsonl"
    acts = [act for episode in _episodes(stored) for act in episode["journal"]["records"]]
    otherwise = 0
    saved = whole.run.folder / "checkpoints" / "step_3" / "policies"
    for agent in policies:
        own = [act for act in acts if act["agent"] == agent]
        said = {name: answers(saved / name / "huggingface", own) for name in policies}
        assert said[policies[agent]] == [act["action"]["text"] for act in own]
        otherwise += said[agent] != said[policies[agent]]
    assert otherwise  # the policies differ: the test can detect that they were not exchanged


def test_a_step_is_the_same_on_both(whole: Whole, local: Finished) -> None:
    runs = (whole.run, local)
    sampled = [actions(run, 1) for run in runs]
    assert sampled[0].keys() == sampled[1].keys()
    equal = {key for key, action in sampled[0].items() if action == sampled[1][key]}
    assert len(equal) >= 0.99 * len(sampled[0])  # rounding of a log-prob may choose another token
    rows = [load_run(run.folder).rows[1]["rows"] for run in runs]
    keys = [[f"{row['uid']}_{row['session']}_{row['index']}" for row in of_run] for of_run in rows]
    assert keys[0] == keys[1]
    advantages = [{record["key"]: record["advantage"] for record in explain(run.folder, step=1)} for run in runs]
    groups = {record["key"]: set(record["members"]) for record in explain(local.folder, step=1)}
    for key in [key for key in keys[0] if groups[key] <= equal]:
        assert advantages[0][key] == advantages[1][key]
    if len(equal) == len(sampled[0]):
        lines = [run.lines("train/success")[0] for run in runs]
        timing = ("seconds", "perf/", "mfu")
        names = [name for name in lines[0] if name.startswith("policy/") and not any(word in name for word in timing)]
        for name in names:  # one token's loss has the rounding of a float32 logit of 8 to 16, which is 1e-6
            bound = 1e-5 if name.endswith(("distillation/loss_min", "distillation/loss_max")) else 1e-6
            assert lines[0][name] == pytest.approx(lines[1][name], rel=bound, abs=bound), name
        assert any("grad_norm" in name for name in names)
    taught = ("answerer/reverse_kl", "answerer/distillation/loss", "sender/distillation/loss")
    for metric in (*taught, "sender/distillation/teacher_mass"):  # read by vLLM, and in one process
        lines = [run.lines(f"policy/{metric}") for run in runs]
        assert [line["step"] for line in lines[0]] == [*STEPS]
        values = [line[0][f"policy/{metric}"] for line in lines]
        assert values[0] == pytest.approx(values[1], rel=1e-3), metric


def test_a_run_changes_between_backends(whole: Whole, local: Finished) -> None:
    """Steps 3 and 4, here after two on Ray and vLLM, are those of a run in one process."""
    for metric in ("train/success", "policy/sender/grad_norm", "policy/answerer/pg_loss", "validation/success"):
        values, others = ({line["step"]: line[metric] for line in run.lines(metric)} for run in (whole.run, local))
        assert values == pytest.approx(others, rel=0.05, abs=0.02), metric
    for step in (3, 4):
        sampled, expected = (actions(run, step) for run in (whole.run, local))
        assert sampled.keys() == expected.keys()
        assert sum(sampled[row] == expected[row] for row in sampled) >= 0.99 * len(sampled)
