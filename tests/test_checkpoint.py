"""Which checkpoints count, and which a run may continue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from marl_verl.errors import MarlError
from marl_verl.trainer import checkpoint


def _make(root: Path, name: str, team: Any = None) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    if team is not None:
        (folder / checkpoint.TEAM_FILE).write_text(team if isinstance(team, str) else json.dumps(team))
    return folder


def test_complete_ones_are_found_oldest_first(tmp_path: Path) -> None:
    assert checkpoint.complete(tmp_path / "none") == []
    for step in (20, 100, 3):
        _make(tmp_path, f"step_{step}", {"step": step})
    _make(tmp_path, "step_7")  # no team file
    _make(tmp_path, ".writing-step_200", {"step": 200})  # killed while it was written
    _make(tmp_path, "step_best", {"step": 5})  # somebody's copy
    assert [path.name for path in checkpoint.complete(tmp_path)] == ["step_3", "step_20", "step_100"]


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"step": "x"}', '{"step": null}'])
def test_a_damaged_team_file_is_told(tmp_path: Path, content: str) -> None:
    folder = _make(tmp_path, "step_1", content)
    with pytest.raises(MarlError, match=r"is damaged: team\.json cannot be read"):
        checkpoint.read(folder)


def _config(**changes: Any) -> Any:
    marl = {
        "agents": {"holder": {"policy": "one"}, "asker": {"policy": "two"}},
        "policies": {"two": {}, "one": {}},
        "task": {"name": "inventory"},
        "workflow": {"name": "inventory"},
        "algorithm": {"name": "grpo"},
        "run": {"seed": 3},
    }
    return OmegaConf.create({"marl": {**marl, **changes}, "trainer": {"n_gpus_per_node": 1, "nnodes": 1}})


def test_another_frozen_policy_is_refused(tmp_path: Path) -> None:
    saved = checkpoint.identity(_config())
    now = checkpoint.identity(_config(policies={"two": {"frozen": True}, "one": {}}))
    with pytest.raises(MarlError, match=r"frozen=\[\], the config says \['two'\]"):
        checkpoint.check_identity(saved, now, tmp_path)


def test_the_same_team_continues(tmp_path: Path) -> None:
    saved = json.loads(json.dumps(checkpoint.identity(_config())))
    checkpoint.check_identity(saved, checkpoint.identity(_config()), tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"run": {"seed": 4}}, "seed=3, the config says 4"),
        ({"task": {"name": "games"}}, "task='inventory', the config says 'games'"),
        ({"algorithm": {"name": "at-grpo"}}, "algorithm='grpo', the config says 'at-grpo'"),
        ({"agents": {"holder": {"policy": "two"}, "asker": {"policy": "two"}}}, "agents="),
        ({"policies": {"one": {}}}, "policies=['one', 'two']"),
    ],
)
def test_another_team_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    saved = json.loads(json.dumps(checkpoint.identity(_config())))
    with pytest.raises(MarlError, match="resume with the run's own config, or start a new run") as error:
        checkpoint.check_identity(saved, checkpoint.identity(_config(**change)), tmp_path)
    assert said in str(error.value)
