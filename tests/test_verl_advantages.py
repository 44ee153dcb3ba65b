"""The advantages of a script with `algorithm.adv_estimator` are those of stock verl."""

from typing import Any

import numpy as np
import pytest
import torch
from marl_verl_scripts.verl_script import ESTIMATORS, translate

from marl_verl.algo.advantage import RowTable
from marl_verl.config.parts import algorithm_named
from tests.batches import row

TOKENS = 5


def of_verl(estimator: str, rewards: Any, uids: Any, norm: bool = True) -> Any:
    from verl.protocol import DataProto
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo.core_algos import AdvantageEstimator
    from verl.trainer.ppo.ray_trainer import compute_advantage

    tokens = torch.zeros(len(rewards), TOKENS)
    tokens[:, -1] = torch.tensor(rewards)
    tensors = {"token_level_rewards": tokens, "response_mask": torch.ones(len(rewards), TOKENS)}
    data = DataProto.from_dict(tensors, non_tensors={"uid": np.array(uids, dtype=object)})
    config = AlgoConfig(adv_estimator=estimator, norm_adv_by_std_in_grpo=norm)
    found = compute_advantage(data, AdvantageEstimator(estimator), norm_adv_by_std_in_grpo=norm, config=config)
    return found.batch["advantages"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "estimator", [*(name for name in ESTIMATORS if name not in ("gae", "remax", "gdpo")), "grpo unscaled"]
)
def test_advantages_are_those_of_stock_verl(estimator: str) -> None:
    estimator, _, unscaled = estimator.partition(" ")
    given = [f"algorithm.adv_estimator={estimator}", f"algorithm.norm_adv_by_std_in_grpo={str(not unscaled).lower()}"]
    section = translate(given)[0]["marl"]["algorithm"]
    method = algorithm_named(section["name"], section.get("options"), "options")
    rng = np.random.default_rng(7)
    for draw in (lambda: float(rng.integers(0, 2)), lambda: float(rng.normal())):
        sizes = {"a": 8, "b": 5, "c": 2, "d": 8}
        rows = [row(uid, g, 0, 0, "solver", team=draw()) for uid, size in sizes.items() for g in range(size)]
        found = method.compute(RowTable.from_rows(rows)).advantage
        rewards, uids = ([each["rewards"]["team"] for each in rows], [each["uid"] for each in rows])
        stock = of_verl(estimator, rewards, uids, not unscaled).numpy()
        if "plus_plus" in estimator:  # verl's variance is that of n tokens, with n - 1
            stock *= (stock.size / (stock.size - 1)) ** 0.5
        np.testing.assert_allclose(found[:, None].repeat(TOKENS, 1), stock, atol=1e-6)
