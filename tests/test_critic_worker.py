"""verl's real critic worker in this process: the position of a value, and the effect of an update on the weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import DictConfig

pytest.importorskip("verl")
from verl.utils.tensordict_utils import chunk_tensordict

from marl_verl.backend.learning.batches import jagged
from marl_verl.backend.learning.critic import Critic
from marl_verl.backend.learning.workers import CriticWorker
from marl_verl.config.compose import with_overrides
from marl_verl.config.resolve import resolve
from marl_verl.config.stored import team_of

pytestmark = pytest.mark.slow

RECIPE = """
defaults: [marl_trainer, _self_]
data: {train_batch_size: 8}
marl:
  task: {name: inventory}
  workflow: {name: inventory}
  algorithm: {name: ippo}
  agents: {holder: {policy: one}, asker: {policy: one}}
  policies: {one: {}}
"""
SETTINGS = (
    # SGD with learning rate 1: a step is the gradient
    "marl.critic.optim={optimizer: SGD, lr: 1.0, weight_decay: 0.0, clip_grad: 1e9}",
    "marl.critic.ppo_max_token_len_per_gpu=12",  # several micro-batches an update
)
OBSERVATIONS = [torch.tensor(ids) for ids in ([3, 9], [4, 11, 22, 5], [8, 8, 21], [26, 10], [4, 11, 22, 5])]
TARGETS = np.array([1.0, 0.0, 0.5, -1.0, 2.0])


class RealCritic(Critic):
    """A critic whose worker is verl's, called directly, and whose head is not 0.

    `ranks`: the data-parallel size. Each process has all rows; it works on its own part if the group has so many ranks.
    """

    def __init__(self, config: DictConfig, ranks: int) -> None:
        super().__init__("one", config)
        self.ranks, self.rows = ranks, list[int]()
        self.start(CriticWorker(self.training()[0]))
        self.module = self.workers.engine.module
        self.first_head = self.head().clone()
        with torch.no_grad():
            head = self.module.score.weight
            values = torch.linspace(-1, 1, head.numel())[None]
            head.copy_(torch.distributed.tensor.distribute_tensor(values, head.device_mesh, head.placements))

    @classmethod
    def of(cls, composed: DictConfig, model: Path, *overrides: str, ranks: int = 1) -> "RealCritic":
        config = with_overrides(composed, [f"marl.policies.one.model.path={model}", *SETTINGS, *overrides])
        return cls(resolve(config, team_of(config)), ranks)

    @property
    def data_parallel_size(self) -> int:
        return self.ranks

    def call(self, method: str, data: Any) -> Any:
        self.rows.append(len(data))
        parts = chunk_tensordict(data, torch.distributed.get_world_size())
        output = getattr(self.workers, method)(parts[torch.distributed.get_rank()])
        if method == "infer_batch":
            values: list[Any] = [None] * len(parts)
            torch.distributed.all_gather_object(values, output["values"].unbind())
            return {"values": jagged([row for part in values for row in part])}
        return output

    def head(self) -> torch.Tensor:
        return self.module.score.weight.full_tensor().detach()

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: weight.full_tensor().detach().clone() for name, weight in self.module.named_parameters()}

    def plain(self) -> Any:
        """The model in plain transformers and float64, with the weights of now."""
        from transformers import AutoModelForTokenClassification

        model = AutoModelForTokenClassification.from_config(self.module.config)
        model.load_state_dict(self.weights())
        return model.double()


def expected(model: Any, observations: Sequence[torch.Tensor]) -> torch.Tensor:
    """V of each observation, one at a time and nothing behind it."""
    return torch.stack([model(ids[None]).logits[0, -1, 0] for ids in observations])


def test_a_value_is_of_the_whole_observation_and_of_nothing_behind_it(composed: DictConfig, verl_model: Path) -> None:
    critic = RealCritic.of(composed, verl_model, ranks=3)
    values = critic.values(OBSERVATIONS)
    np.testing.assert_allclose(values, expected(critic.plain(), OBSERVATIONS).detach(), atol=1e-5)
    assert len(set(values.round(4))) == 4
    assert critic.rows == [6]  # and one to fill three ranks


def test_a_new_head_expects_nothing(composed: DictConfig, verl_model: Path) -> None:
    assert not RealCritic.of(composed, verl_model).first_head.any()


@pytest.mark.parametrize(("clip", "mode"), [(0.1, "token-mean"), (100.0, "seq-mean-token-sum")])
def test_an_update_follows_the_clipped_loss(composed: DictConfig, verl_model: Path, clip: float, mode: str) -> None:
    """L = mean over rows of 1/2 max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2), padding not counted."""
    settings = f"marl.critic.cliprange_value={clip}", f"marl.critic.loss_agg_mode={mode}"
    critic = RealCritic.of(composed, verl_model, *settings, ranks=3)  # six rows: one is padding
    before, plain = critic.weights(), critic.plain()
    now = expected(plain, OBSERVATIONS)
    old = now.detach() + torch.tensor([0.0, 0.5, -0.5, 0.05, -2.0])
    targets = torch.tensor(TARGETS)
    loss = torch.maximum((now - targets) ** 2, (torch.clamp(now, old - clip, old + clip) - targets) ** 2).mean() / 2
    loss.backward()
    metrics = critic.update(OBSERVATIONS, TARGETS, old.numpy())
    after = critic.weights()
    assert critic.rows == [6]
    for name, weight in plain.named_parameters():
        np.testing.assert_allclose(before[name] - after[name], weight.grad, atol=1e-4, rtol=1e-4, err_msg=name)
    assert (metrics["vf_loss"], metrics["target"]) == (pytest.approx(float(loss), rel=1e-4), pytest.approx(0.5))
    assert metrics["explained_variance"] == pytest.approx(1 - (TARGETS - old.numpy()).var() / TARGETS.var(), rel=1e-5)


def test_updates_a_batch_and_epochs(composed: DictConfig, verl_model: Path) -> None:
    """Eight tasks in mini-batches of four are two updates, each of rows from the whole batch; twice over."""
    critic = RealCritic.of(composed, verl_model, "marl.critic.ppo_mini_batch_size=4", "marl.critic.ppo_epochs=2")
    seen: list[tuple[list[int], float]] = []
    engine = critic.workers.engine
    step = engine.train_batch

    def train_batch(data: Any, loss_function: Any) -> Any:
        seen.append(([len(prompt) for prompt in data["prompts"].unbind()], data["global_batch_size"]))
        return step(data, loss_function)

    engine.train_batch = train_batch
    critic.update(OBSERVATIONS, TARGETS, np.zeros(5))
    # three rows each, one of them padding, which a mean over rows does not count
    assert seen == [([2, 3, 4], 2.5), ([4, 2, 4], 2.5)] * 2
