"""Which run may continue from a checkpoint: the settings, and the plugins."""

import copy
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from marl_verl.errors import MarlError, MarlWarning
from marl_verl.run.checkpoint import team as fingerprint
from tests.sites import use_plugin


def run_config(change: Callable[[Any], None] | None = None) -> Any:
    model = {"path": "models/a", "lora_rank": 0, "lora_alpha": 16, "target_modules": "all-linear"}
    actor = {"clip_ratio": 0.2, "optim": {"optimizer": "AdamW", "lr": 1e-3}, "ppo_mini_batch_size": 8}
    own = {
        "actor_rollout_ref": {"model": model, "actor": actor, "rollout": {"temperature": 1.0}},
        "algorithm": {"rollout_correction": {"rollout_is": None}},
        "trainer": {"n_gpus_per_node": 1, "nnodes": 1},
        "data": {"apply_chat_template_kwargs": {}},
    }
    values: Any = {
        "marl": {
            "agents": {"holder": {"policy": "one"}, "asker": {"policy": "two"}},
            **{"policies": {"one": {}, "two": {}}, "pools": {}},
            "task": {"name": "inventory", "options": {}, "train_size": 8, "test_size": 4},
            **{"workflow": {"name": "inventory", "options": {}}, "algorithm": {"name": "grpo", "options": {}}},
            **{"sampler": {"options": {"episodes": 4}}, "validation": {"sampler": None, "options": {}}},
            **{"schedule": {"mode": "sync", "fill": 16}, "rollout": {"episode_tokens": None, "act_seconds": 300}},
            "run": {"seed": 3, "name": "x", "keep_rows": 1},
        },
        "policies": {"one": copy.deepcopy(own), "two": copy.deepcopy(own)},
        "data": {"train_batch_size": 4, "shuffle": True, "seed": 3},
        "trainer": {"n_gpus_per_node": 1, "nnodes": 1, "total_training_steps": 10, "save_freq": 5},
    }
    if change is not None:
        change(values)
    return OmegaConf.create(values)


def test_the_same_run_continues() -> None:
    def shuffled(values: Any) -> None:
        values["marl"] = dict(reversed(values["marl"].items()))
        values["policies"] = dict(reversed(values["policies"].items()))
        values["marl"]["agents"] = {"asker": {"policy": "two", "instructions": ""}, "holder": {"policy": "one"}}
        values["marl"]["policies"]["one"] = {"frozen": False}

    saved = json.loads(json.dumps(fingerprint.resume_fingerprint(run_config())))
    assert fingerprint.changes(saved, fingerprint.resume_fingerprint(run_config(shuffled))) == []


def test_what_may_change() -> None:
    def change(values: Any) -> None:
        values["trainer"] |= {"total_training_steps": 99, "save_freq": 1, "test_freq": 2}
        values["policies"]["one"]["actor_rollout_ref"]["actor"] |= {"ppo_mini_batch_size": 4}
        values["policies"]["one"]["actor_rollout_ref"]["actor"]["optim"]["lr"] = 1.0
        # with no adapter nothing of it counts
        values["policies"]["one"]["actor_rollout_ref"]["model"]["lora_alpha"] = 1
        marl = values["marl"]
        marl["validation"] |= {"sampler": "best-of", "options": {"episodes": 9}}
        marl["rollout"] |= {"act_seconds": 1, "keep_episodes": 9}
        marl["run"] |= {"name": "y", "keep_rows": 0, "dir": "z"}
        marl["task"] |= {"test_size": 5}
        marl["checkpoint"] = {"keep": 9}
        marl["schedule"]["fill"] = 32
        marl["critic"] = {"optim": {"lr": 1.0, "lr_warmup_steps": 3}}

    saved, now = (fingerprint.resume_fingerprint(run_config(changed)) for changed in (None, change))
    assert fingerprint.changes(saved, now) == []


def _set(path: str, value: Any) -> Callable[[Any], None]:
    def change(values: Any) -> None:
        *parents, last = path.split(".")
        for key in parents:
            values = values[key]
        if value is None:
            del values[last]
        else:
            values[last] = value

    return change


ENDPOINT = {"endpoint": {"url": "http://x/v1", "model": "m"}}
ARR = "policies.two.actor_rollout_ref"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("marl.run.seed", 4, ["marl.run.seed (3 -> 4)"]),
        (
            "marl.agents",
            {"asker": {"policy": "one"}, "holder": {"policy": "two"}},
            ['marl.agents.asker.policy ("two" -> "one")', 'marl.agents.holder.policy ("one" -> "two")'],
        ),
        ("marl.policies.two", ENDPOINT, ['marl.policies.two.kind ("trained" -> "endpoint m at http://x/v1")']),
        ("marl.policies.two", {"tool_parser": "hermes"}, ["marl.policies.two.tool_parser (nothing -> "]),
        (f"{ARR}.model.path", "models/b", ['marl.policies.two.model.path ("models/a" -> "models/b")']),
        (f"{ARR}.actor.clip_ratio", 0.3, ["marl.policies.two.actor.clip_ratio (0.2 -> 0.3)"]),
        ("policies.two.algorithm.rollout_correction", {"rollout_is": "token"}, ['rollout_is (null -> "token")']),
        ("marl.algorithm.options", {"advantage": {"eps": 0.5}}, ["options.advantage.eps (1e-06 -> 0.5)"]),
        ("marl.schedule.mode", "async", ['marl.schedule.mode ("sync" -> "async")']),
    ],
)
def test_another_run_is_refused(tmp_path: Path, path: str, value: Any, message: list[str]) -> None:
    saved = json.loads(json.dumps({"fingerprint": fingerprint.resume_fingerprint(run_config())}))
    with pytest.raises(MarlError, match="Restore these settings to resume the run, or start a new run") as error:
        fingerprint.check_same(saved, run_config(_set(path, value)), tmp_path)
    assert all(part in str(error.value) for part in message), str(error.value)
    clauses = str(error.value).count(" -> ") - 1  # one in "saved -> now"
    assert clauses == (2 if path == "marl.agents" or "tiny" in str(value) else 1)


def test_only_plugins_that_a_run_uses_count(monkeypatch: pytest.MonkeyPatch) -> None:
    from marl_verl.algo.algorithms.presets import GRPO

    use_plugin(monkeypatch, lambda registry: registry.algorithm("mine", GRPO))
    assert "in-memory" not in fingerprint.used_plugins(run_config())
    used = fingerprint.used_plugins(run_config(_set("marl.algorithm.name", "mine")))
    assert used["in-memory"] == {"version": "0", "content": ""}
    assert len(used["marl-verl"]["content"]) == 64
    assert "marl-verl" in used


def test_plugins_of_another_version_or_source(tmp_path: Path) -> None:
    saved = fingerprint.used_plugins(run_config())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fingerprint.check_plugins(saved, tmp_path)
    saved["marl-verl"]["content"] = "f" * 64
    with pytest.warns(MarlWarning, match=r"source of marl-verl .* has changed since .*content hash ffffffffffff -> "):
        fingerprint.check_plugins(saved, tmp_path)
    saved["marl-verl"]["version"] = "0.0.1"
    saved["papers"] = {"version": "2.0", "content": ""}
    with pytest.raises(MarlError, match=r'plugin\.marl-verl \("0\.0\.1" -> .*plugin\.papers \("2\.0" -> nothing\)'):
        fingerprint.check_plugins(saved, tmp_path)
