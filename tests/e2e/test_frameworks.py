"""Agents of five frameworks are trained unchanged, by a tree and with counterfactual credit. MARL_VERL_LONG=1."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from marl_verl.testing import real
from tests.e2e.all_frameworks import TEAMS, framework
from tests.e2e.conftest import long

pytestmark = [pytest.mark.e2e, long]

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "frameworks" / "openai_agents.yaml"
WAYS: dict[str, Any] = {
    "greedy-tree": {"algorithm": {"name": "at-grpo"}, "sampler": {"options": {"candidates": 2}}},
    "counterfactual": {
        "algorithm": {"name": "grpo", "options": {"credit": "counterfactual"}},
        "sampler": {"options": {"episodes": 2}},
    },
}


@pytest.mark.parametrize("way", WAYS)
def test_every_framework_trains(way: str, tmp_path: Path) -> None:
    recipe: Any = OmegaConf.load(RECIPE)
    recipe.marl.update(WAYS[way])
    recipe.marl.plugins = [str(Path(__file__).with_name("all_frameworks.py"))]
    recipe.marl.task = {"name": "mixed-digits", "train_size": 64, "test_size": 5}
    recipe.marl.workflow = {"name": "every-framework"}
    recipe.marl.policies.first.tiny.good = 0.9  # most of its demonstrations call a tool
    recipe.trainer = {"total_training_steps": 2, "test_freq": -1, "save_freq": 2}
    OmegaConf.save(recipe, tmp_path / "recipe.yaml")
    variables = {"FRAMEWORKS_FOLDER": str(RECIPE.parent), "FRAMEWORKS_NOTES": str(tmp_path)}
    run = real.train(tmp_path / "recipe.yaml", tmp_path / "run", variables=variables)
    assert run.code == 0, run.output
    assert [line["train/failed_episodes"] for line in run.lines("train/success")] == [0, 0]
    for policy in run.summary["policies"].values():
        assert policy["weight_change"] > 0
    rows = [row for step in (1, 2) for row in real.rows(run.folder, step)]
    assert {row["agent"] for row in rows} == {"first", "second"}

    sampled, trained = ([*map(tuple_of, (tmp_path / f"{kind}.jsonl").open())] for kind in ("sampled", "rows"))
    assert len(trained) == len(rows)
    assert not Counter(trained) - Counter(sampled)  # each row has the tokens of a server's completion, and no other

    episodes = [json.loads(line) for file in (run.folder / "journals").glob("step_*.jsonl") for line in file.open()]
    played = [each for each in episodes if "journal" in each]
    called = Counter[str]()
    for each in played:
        acts = [record for record in each["journal"]["records"] if record["effect"] == "act"]
        called[framework(each["task"]["id"])] += sum(bool(act["action"].get("tool_calls")) for act in acts)
    assert set(called) == set(TEAMS)
    assert called["openai_agents_team"]  # handoffs
    assert called["pydantic_ai_team"] + called["smolagents_team"]
    if way == "counterfactual":
        assert {"credit"} <= {name for row in rows for name in row["rewards"]}


def tuple_of(line: str) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, json.loads(line)))
