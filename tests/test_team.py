"""The typed `marl` section: what makes a team, and every way in which it cannot be one."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from marl_verl.errors import MarlError
from marl_verl.team import Endpoint, Named, read_team

MARL: dict[str, Any] = {
    "agents": {
        "solver": {"policy": "base", "instructions": "Solve it.", "sampling": {"temperature": 0.7}},
        "judge": {"policy": "base", "reward": "valid-answer"},
        "writer": {"policy": "other"},
    },
    "policies": {"base": {"actor": {"optim": {"lr": 1e-5}}}, "other": {"frozen": True, "tiny": {"steps": 3}}},
    "task": {"name": "inventory", "options": {"length": 3}},
    "workflow": {"name": "inventory"},
    "algorithm": {"name": "grpo", "options": None},
}


def test_a_team_is_read_with_its_types() -> None:
    team = read_team(MARL)
    assert team.agents["solver"].instructions == "Solve it."
    assert team.agents["solver"].sampling.temperature == 0.7
    assert team.agents["judge"].reward == "valid-answer"
    assert team.agents_of("base") == ["solver", "judge"]
    assert team.policies["base"].override == {"actor": {"optim": {"lr": 1e-5}}}
    assert team.policies["other"].frozen
    assert team.policies["other"].made == Named("tiny", {"steps": 3})
    assert team.task.options == {"length": 3}
    assert team.algorithm.options == {}


def test_an_endpoint_is_always_frozen() -> None:
    marl = {**MARL, "policies": {"base": {}, "other": {"endpoint": {"url": "http://x/v1", "model": "m"}}}}
    team = read_team(marl)
    assert team.policies["other"].endpoint == Endpoint("http://x/v1", "m", None)
    assert [policy.trained for policy in team.policies.values()] == [True, False]


def test_an_endpoint_has_stop_strings_and_its_own_template() -> None:
    marl = copy.deepcopy(MARL)
    marl["policies"]["other"] = {"endpoint": {"url": "u", "model": "m"}, "stop": "END"}
    assert read_team(marl).policies["other"].stop == ["END"]
    marl["policies"]["other"]["apply_chat_template_kwargs"] = {"enable_thinking": False}
    with pytest.raises(MarlError, match="endpoint, but has 'apply_chat_template_kwargs', which has no effect"):
        read_team(marl)


def test_a_policy_has_its_own_loss() -> None:
    marl = copy.deepcopy(MARL)
    marl["policies"]["base"] = {"loss": "gspo", "pool": "big", "model": {"lora_rank": 8}}
    policy = read_team(marl).policies["base"]
    assert (policy.loss, policy.pool, policy.lora_rank) == ("gspo", "big", 8)
    assert policy.override == {"model": {"lora_rank": 8}}
