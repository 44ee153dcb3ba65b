"""One of several ranks that update models together."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from marl_verl.config.compose import compose
from tests import test_critic_worker
from tests.test_losses import ROWS, log_probs
from tests.verl_actor import UNMOVED, Actor, cpu_verl

LORA = ("marl.policies.one.model.lora_rank=4", "marl.policies.one.model.lora_alpha=8")
LIMIT = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=20"
"""Tokens of a micro-batch: as many as the longest sequence."""
SHARED, SEPARATE = "rows that share prefixes", "the same rows, separate"
CASES: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "a mean over tokens": ("ppo-clip", 7, ()),
    "a mean over rows of means over tokens": ("gspo", 7, ()),
    "a mean over rows of sums over tokens": ("reinforce", 7, ()),
    "importance weights": ("ppo-clip-tis", 6, ()),
    "two epochs": ("ppo-clip", 5, ("actor_rollout_ref.actor.ppo_epochs=2",)),
    "a rank without a row": ("reinforce", 1, ()),
    "adapters": ("ppo-clip", 7, LORA),
    SHARED: ("ppo-clip-tis", 7, ()),
    SEPARATE: ("ppo-clip-tis", 7, ("marl.run.share_prefixes=false",)),
}
if not os.environ.get("MARL_VERL_LONG"):
    CASES = {name: CASES[name] for name in ("a rank without a row", SHARED, SEPARATE)}
"""Name -> loss, number of rows, overrides."""
Found = dict[str, tuple[dict[str, Any], dict[str, float]]]
"""Case -> (weights before - weights after by name, metrics)."""


def find(folder: Path, ranks: int) -> Found:
    """Run every case on this rank, in a process group of `ranks`."""
    from transformers import AutoModelForCausalLM

    found: Found = {}
    with torch.no_grad():
        plain = AutoModelForCausalLM.from_pretrained(folder / "model").double()
        given = dict.fromkeys([*CASES, "a shared base"], ROWS) | dict.fromkeys((SHARED, SEPARATE), UNMOVED)
        now = {name: log_probs(plain, rows) for name, rows in given.items()}
    for name, (loss, rows, overrides) in CASES.items():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)  # of the adapters
            found[name] = Actor(folder / "model", loss, LIMIT, *overrides).update(given[name][:rows], now[name][:rows])
    found["a critic"] = _critic(folder, ranks)
    found["a shared base"] = _shared_base(folder, now["a shared base"])
    return found


def _shared_base(folder: Path, now: Sequence[torch.Tensor]) -> tuple[dict[str, Any], dict[str, float]]:
    """The second update of one of two policies on one model."""
    from verl.utils.config import omega_conf_to_dataclass

    from marl_verl.backend.learning.workers import Adapter, PolicyWorker

    def make(config: Any, role: str) -> PolicyWorker:
        optim = omega_conf_to_dataclass(config.actor).optim
        policies = {name: Adapter(seed, optim) for name, seed in (("one", 1), ("two", 2))}
        return PolicyWorker(config=config, role=role, adapters=policies)

    with torch.random.fork_rng(devices=[]):
        actor = Actor(folder / "model", "ppo-clip", LIMIT, *LORA, make=make)
        for policy in ("one", "two"):
            actor.worker.use(policy)
            actor.worker.set_loss_fn(actor.policy.loss())
        for policy in ("one", "two", "one"):
            actor.worker.use(policy)
            found = actor.update(ROWS, now)
    return found


def _critic(folder: Path, ranks: int) -> tuple[dict[str, Any], dict[str, float]]:
    recipe = folder / f"critic_{ranks}_{torch.distributed.get_rank()}.yaml"
    recipe.write_text(test_critic_worker.RECIPE)
    critic = test_critic_worker.RealCritic.of(compose(recipe, [], hardware="cpu"), folder / "model", ranks=ranks)
    before, observations = critic.weights(), test_critic_worker.OBSERVATIONS
    values = critic.values(observations)
    metrics = critic.update(observations, test_critic_worker.TARGETS, np.roll(values, 1))
    return {name: before[name] - weight for name, weight in critic.weights().items()}, metrics


def write(rank: int, ranks: int, folder: Path) -> None:
    """Write what a rank finds to FOLDER/RANKS_RANK.pt."""
    with cpu_verl(rank, ranks, folder / "store"):
        torch.save(find(folder, ranks), folder / f"{ranks}_{rank}.pt")
