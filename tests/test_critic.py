"""Critics: the critics of a run, the input of the team critic, and the rows of each critic."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from marl_verl_local.session import MemoryStore
from marl_verl_testing import ScriptedPolicy
from marl_verl_testing.scripted import ScriptedContext
from omegaconf import DictConfig, OmegaConf

from marl_verl.algo.sampling import Independent
from marl_verl.backend import protocol
from marl_verl.backend.protocol import Rows, Runtime
from marl_verl.backend.rollout.rows import JointObservations, joint_observations, row_fields, row_tag
from marl_verl.config.compose import with_overrides
from marl_verl.config.resolve import resolve
from marl_verl.config.stored import team_of
from marl_verl.episode import Workflow
from marl_verl.errors import MarlError
from marl_verl.tasks import Task
from marl_verl.team import TeamConfig
from tests.batches import resolved, team_config


class Talk(Workflow):
    """One agent alone, then a joint act, then one agent alone with its history."""

    async def run(self, task: Any, team: Any) -> str:
        first = await team["b"].act("one")
        both = await team.act({"a": "two " + first.text, "b": "three"})
        seen = [{"role": "user", "content": "four"}, {"role": "assistant", "content": both["a"].text}]
        return str((await team["a"].act(seen)).text)


def episodes() -> Any:
    context = ScriptedContext(Talk(), Task("q0", "prompt", {}), ScriptedPolicy({"a": "x", "b": "y"}))
    return asyncio.run(Independent(2).sample(context))


def test_a_joint_observation_is_everybodys_latest() -> None:
    assert [*joint_observations(episodes().episodes[0], ["c", "a", "b"]).values()] == [
        "c: nothing yet\na: nothing yet\nb: one\nnow: b",
        "c: nothing yet\na: two y\nb: three\nnow: a",  # at once: a's is there for b, and b's for a
        "c: nothing yet\na: two y\nb: three\nnow: b",
        "c: nothing yet\na: user: four\nassistant: x\nb: three\nnow: a",
    ]


def test_trained_rows_have_joint_observations_truncated_on_the_left() -> None:
    sample = episodes()
    fields = {turn.row: row_fields(turn) for turn in sample.turns if turn.policy == "a"}
    tags = {turn.row: row_tag(turn, 1) for turn in sample.turns}
    letters: Any = lambda messages: list(messages[0]["content"].encode())  # noqa: E731
    JointObservations(letters, ("a", "b"), 40).add(fields, tags, sample.episodes)
    observed = [bytes(fields[key]["critic_ids"].tolist()).decode() if key in fields else None for key in tags]
    long = "a: user: four\nassistant: x\nb: three\nnow: a"
    assert observed == [None, "a: two y\nb: three\nnow: a", None, long[-40:]] * 2
    assert [tag.get("critic_cut") for tag in tags.values()] == [None, False, None, True] * 2


RECIPE = """
  algorithm: {name: ippo}
  agents: {holder: {policy: one}, asker: {policy: two}}
  policies: {one: {model: {path: /models/one}, actor: {optim: {lr: 0.5}}}, two: {model: {path: /models/two}}}
data: {train_batch_size: 8, max_prompt_length: 48}
"""


@pytest.mark.slow
def test_mappo_has_one_on_the_first_policy_that_learns(composed: DictConfig) -> None:
    critics = resolved(composed, "marl.algorithm.name=mappo").critics
    assert list(critics) == ["team"]
    assert (critics.team.policy, critics.team.scope, critics.team.max_prompt_length) == ("one", "team", 96)
    lines = "marl.algorithm.name=mappo", "marl.policies.one.frozen=true", "marl.critic.max_prompt_length=7"
    other = resolved(composed, *lines).critics
    assert (other.team.policy, other.team.max_prompt_length) == ("two", 7)
    assert other.team.critic.model.path == "/models/two"


@pytest.mark.slow
def test_a_critic_runs_as_its_policy_does(composed: DictConfig) -> None:
    config = resolved(
        composed,
        "marl.policies.one.actor.fsdp_config.param_offload=true",
        "marl.policies.one.model.lora_rank=8",
        "marl.policies.one.actor.ppo_mini_batch_size=4",
        "marl.policies.one.actor.loss_agg_mode=seq-mean-token-sum",
        "marl.critic.optim.lr=0.25",
        "marl.critic.model.enable_gradient_checkpointing=true",
        "marl.critic.ppo_epochs=3",
    )
    one, two = config.critics.one.critic, config.critics.two.critic
    assert (one.strategy, one.fsdp.mixed_precision.param_dtype, one.fsdp.use_torch_compile) == ("fsdp2", "fp32", False)
    assert (one.fsdp.param_offload, two.fsdp.param_offload) == (True, False)
    assert one.model.override_config == {"attn_implementation": "sdpa"}
    assert (one.model.use_remove_padding, one.model.lora_rank) == (False, 0)
    assert (one.ppo_mini_batch_size, two.ppo_mini_batch_size) == (4, 256)
    assert one.ppo_max_token_len_per_gpu == 65536
    # marl.critic is for every critic, never the policy's learning rate
    for critic in (one, two):
        assert (critic.optim.lr, critic.ppo_epochs, critic.model.enable_gradient_checkpointing) == (0.25, 3, True)
        assert critic.loss_agg_mode == "token-mean"
        assert critic.optim.total_training_steps == config.trainer.total_training_steps


# All critics of a run: whose rows go where


def fake(*settings: Any) -> Any:
    """A critic without a model: its value is a tenth of the sum of the ids; records its training data."""
    from marl_verl.backend.learning.critic import Critic

    class FakeCritic(Critic):
        def values(self, observations: Sequence[torch.Tensor]) -> Any:
            return np.array([int(ids.sum()) / 10 for ids in observations])

        def update(self, observations: Any, targets: Any, values: Any) -> dict[str, float]:
            self.learnt = [tuple(ids.tolist()) for ids in observations], targets.tolist(), values.tolist()
            return {"vf_loss": 1.0}

    return FakeCritic(*settings)


def batch(store: MemoryStore) -> Rows:
    """Rows of two policies that learn and a frozen one."""
    policies = ["two", "frozen", "one", "two"]
    keys = [f"u_0_{index}" for index in range(4)]
    for index, key in enumerate(keys):
        if policies[index] != "frozen":
            store.put([key], {"prompts": [torch.tensor([index, 1])], "critic_ids": [torch.tensor([index, 1, 1])]})
    return Rows(keys, [{"policy": name, "critic_cut": index == 2} for index, name in enumerate(policies)])


def critics_of(store: MemoryStore, **scopes: str) -> Any:
    model = {"model": {"path": "model", "tokenizer_path": None}}
    critic = {"ppo_mini_batch_size": 1, **model}
    critics = {name: {"policy": name, "scope": scope, "critic": critic} for name, scope in scopes.items()}
    policies = {name: {"actor_rollout_ref": model} for name in scopes}
    config = OmegaConf.create({"data": {"train_batch_size": 1}, "critics": critics, "policies": policies})
    agents = {agent: {"policy": policy} for agent, policy in zip("abc", ("one", "two", "frozen"), strict=True)}
    return policies_of(config, team_config(agents, one={}, two={}, frozen={"frozen": True}), store)


def policies_of(config: DictConfig, team: TeamConfig, store: MemoryStore) -> Any:
    """The critics of a team, whose policies do nothing."""
    from marl_verl.backend.policies import Policies

    class Fakes(Policies):
        critic = staticmethod(fake)
        frozen = learner = staticmethod(lambda policy, *_: Runtime(policy))

    return Fakes(config, team, store)


@pytest.mark.slow
def test_the_policy_is_named_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    policies, shown = critics_of(MemoryStore(), one="policy", two="policy"), list[tuple[str, bool]]()
    monkeypatch.setattr(protocol, "emit", lambda _, message, expected: shown.append((message, expected)))
    monkeypatch.setattr(policies.runtimes["two"], "start", lambda: int("x"))
    with pytest.raises(ValueError, match="invalid literal") as error:
        policies.start()
    error.value.add_note("in a process of its own:\ntraceback")
    assert protocol.reported(error.value) == 1
    assert shown == [("policy 'two': ValueError: invalid literal for int() with base 10: 'x'", False)]


@pytest.mark.slow
def test_each_critic_sees_and_learns_from_its_policys_rows() -> None:
    critics, rows = critics_of(store := MemoryStore(), one="policy", two="policy"), batch(store)
    assert critics.values(rows) == pytest.approx([0.1, np.nan, 0.3, 0.4], nan_ok=True)
    assert critics.update(rows, Rows([], []), np.array([10.0, 11.0, 12.0, 13.0]))[0] == {
        "critic/one/vf_loss": 1.0,
        "critic/two/vf_loss": 1.0,
    }
    assert critics.critics["one"].learnt == ([(2, 1)], [12.0], [0.3])
    assert critics.critics["two"].learnt == ([(0, 1), (3, 1)], [10.0, 13.0], [0.1, 0.4])


@pytest.mark.slow
def test_the_teams_critic_learns_from_all_that_learn() -> None:
    critics, rows = critics_of(store := MemoryStore(), team="team"), batch(store)
    assert critics.values(rows) == pytest.approx([0.2, np.nan, 0.4, 0.5], nan_ok=True)
    metrics, _ = critics.update(rows, Rows([], []), np.arange(4.0))
    assert metrics == {"critic/team/vf_loss": 1.0, "critic/team/cut": pytest.approx(1 / 3)}
    assert critics.critics["team"].learnt[1] == [0.0, 2.0, 3.0]


@pytest.mark.slow
def test_a_critic_that_does_not_read_its_policys_tokens_is_refused(composed: DictConfig, tmp_path: Path) -> None:
    from marl_verl_tiny.factory import make_tokenizer

    make_tokenizer(["some", "words"]).save_pretrained(tmp_path / "policy")
    make_tokenizer(["other", "words"]).save_pretrained(tmp_path / "critic")
    paths = [f"marl.policies.{name}.model.path={tmp_path / 'policy'}" for name in ("one", "two")]
    config = with_overrides(composed, [*paths, f"marl.critic.model.path={tmp_path / 'critic'}"])
    team = team_of(config)
    with pytest.raises(MarlError, match=r"critic of policy 'one' must have the policy's vocabulary, but those of '"):
        policies_of(resolve(config, team), team, MemoryStore())
