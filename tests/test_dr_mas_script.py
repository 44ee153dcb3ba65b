"""Scripts of Dr. MAS's code become a team; what it cannot honour is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from marl_verl.config.hardware import HARDWARE_VARIABLE
from marl_verl.config.translation import Translation
from marl_verl.config.verl_keys import at
from marl_verl.config.verl_script import translate

ACTOR = "actor_rollout_ref.actor"
MATH = (
    "algorithm.adv_estimator=grpo algorithm.group_by_agent_id=True agent.model_sharing=False agent.orchestra_type=math "
    'agent.agent_ids=["Verifier Agent","Solver Agent"] agent.model_ids=["a/one","a/two"] env.env_name=math env.seed=3 '
    "agent.orchestra.math.max_loop_num=4 env.rollout.n=6 env.rollout.val_n=2 data.train_files=train.parquet "
    "data.val_files=test.parquet data.train_batch_size=60 trainer.n_gpus_per_node=4 actor_rollout_ref.model.path=null "
    f"+agent.agent_specific_parameters.actor.optim.lr=[1e-6,2e-6] {ACTOR}.optim.lr=null "
    f"{ACTOR}.use_adaptive_ppo_mini_batch_size=True {ACTOR}.ppo_mini_update_num=7 "
    f"{ACTOR}.use_invalid_action_penalty=True {ACTOR}.invalid_action_penalty_coef=0.3 "
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.5"
).replace(" Agent", "_Agent")
SEARCH = (
    "agent.orchestra_type=search agent.agent_ids=[Search_Agent,Answer_Agent,Verifier_Agent] agent.model_ids=[m,n,m] "
    "agent.model_sharing=True env.env_name=search env.max_steps=5 env.history_length=5 env.search.topk=2 "
    "env.search.search_url=http://host/retrieve env.rollout.n=5"
)


@pytest.fixture(autouse=True)
def _gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HARDWARE_VARIABLE, "gpu")


def script(*lines: str) -> Translation:
    return translate([word.replace("_Agent", " Agent") for line in lines for word in line.split()])


def test_a_policy_for_each_agent() -> None:
    recipe, _ = script(MATH).checked()
    marl: Any = recipe["marl"]
    assert {name: agent["policy"] for name, agent in marl["agents"].items()} == {
        "verifier": "verifier",
        "solver": "solver",
    }
    models = {
        name: (policy["model"]["path"], policy["actor"]["optim"]["lr"]) for name, policy in marl["policies"].items()
    }
    assert models == {"verifier": ("a/one", 1e-6), "solver": ("a/two", 2e-6)}
    assert marl["policies"]["solver"]["rollout"]["gpu_memory_utilization"] == 0.4  # 0.8 of the GPU for both
    assert marl["task"]["name"] == marl["workflow"]["name"] == "dr-mas-math"
    assert (marl["task"]["train_file"], marl["workflow"]["options"]) == ("train.parquet", {"rounds": 4})
    assert marl["algorithm"]["name"] == "dr-mas"
    assert marl["algorithm"]["options"] == {
        "rewards": {"name": "marl_verl_dr_mas.algorithm:PenaltyMix", "penalty": 0.3}
    }
    assert (marl["sampler"]["options"], marl["validation"]["options"]) == ({"episodes": 6}, {"episodes": 2})
    assert marl["run"] == {"seed": 3}
    assert recipe["actor_rollout_ref"]["actor"] == {"ppo_mini_batch_size": 9}  # 60 / 9: 7 updates


def test_agents_with_the_same_model_share_it() -> None:
    marl: Any = script(SEARCH).recipe["marl"]
    assert {name: agent["policy"] for name, agent in marl["agents"].items()} == {
        "searcher": "searcher-verifier",
        "verifier": "searcher-verifier",
        "answerer": "answerer",
    }
    assert marl["policies"]["searcher-verifier"]["model"] == {"path": "m"}
    assert marl["workflow"]["options"] == {"steps": 5, "found": 2, "source": "http://host/retrieve"}


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("algorithm.group_by_agent_id=False", "algorithm.name", "grpo-trajectory-mean"),
        ("algorithm.adv_estimator=rloo", "algorithm.options.advantage.baseline", "leave-one-out"),
        (f"{ACTOR}.use_invalid_action_penalty=False", "algorithm.options.rewards.penalty", 0.0),
    ],
)
def test_estimators_and_penalty(line: str, key: str, value: Any) -> None:
    translated = script(MATH, line)
    assert at(translated.recipe["marl"], key) == value
    assert not translated.refused


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("algorithm.adv_estimator=gae", ["algorithm.group_by_agent_id=True: groups of an agent's rows"]),
        ("agent.agent_specific_parameters.actor.optim.lr=[1]", ["actor.optim.lr=[1]: lists of one value for each"]),
        ("agent.model_sharing=True agent.model_ids=[a,a]", ["actor.optim.lr=[1e-6,2e-6]: agents of one policy"]),
    ],
)
def test_what_a_team_cannot_honour_is_refused(line: str, refused: list[str]) -> None:
    lines = [f"{key}: {reason}" for reason, key in script(MATH, line).refused]
    for text in refused:
        assert any(text in one_line for one_line in lines), lines
