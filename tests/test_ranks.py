"""Several ranks of a policy: its training workers get one call at a time, and begin from the run's seed."""

import itertools
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from marl_verl_local.session import MemoryStore

from marl_verl.backend.protocol import Rows
from marl_verl.backend.verl.devices import Devices
from marl_verl.config.placement import Pool
from marl_verl.threads import at_once
from tests.forks import FORKS
from tests.rank import CASES, SEPARATE, SHARED, Found, find, write
from tests.verl_actor import Row, cpu_verl, make_model, put

pytest.importorskip("verl")
pytestmark = pytest.mark.slow


class Ranks:
    """Two training workers that a policy and its critic share: each rank runs its calls in the order of arrival.

    A submission to all ranks reaches them one after the other, as verl's `execute_all_async` does.
    """

    def __init__(self) -> None:
        self.seen: tuple[list[str], list[str]] = ([], [])
        self.running, self.together, self._count = 0, 0, itertools.count()
        self._changes = threading.Lock()

    def submit(self, name: str) -> None:
        label = f"{name} {next(self._count)}"
        with self._changes:
            self.running += 1
            self.together = max(self.together, self.running)
        for rank in self.seen:
            rank.append(label)
            time.sleep(random.random() / 500)

    def wait(self) -> None:
        with self._changes:
            self.running -= 1

    def call(self, name: str) -> None:
        self.submit(name)
        self.wait()


class Group:
    """A stub of the worker group that verl spawns for one role on the two workers."""

    def __init__(self, ranks: Ranks, role: str, metrics: dict[str, Any], store: MemoryStore) -> None:
        self.ranks, self.role, self.metrics, self.store = ranks, role, metrics, store
        self._dispatch_info = {"actor": [0, 1], "train": [0, 1]}

    def compute_log_prob(self, batch: Any) -> None:
        self.ranks.call("log probs")
        zeros = [torch.zeros(len(ids)) for ids in self.store.get(batch.keys, ["input_ids"])["input_ids"].unbind()]
        self.store.put(batch.keys, {"log_probs": zeros, "entropy": zeros})

    def update_actor(self, batch: Any) -> dict[str, Any]:
        self.ranks.call("update")
        return {"metrics": dict(self.metrics)}

    def train_mini_batch(self, data: Any) -> Any:
        return self._later({"metrics": dict(self.metrics)})

    def infer_batch(self, data: Any) -> Any:
        values = [torch.zeros(len(ids), 1) for ids in data["input_ids"].unbind()]
        return self._later({"values": torch.nested.as_nested_tensor(values, layout=torch.jagged)})

    def save_checkpoint(self, *_: Any, **__: Any) -> None:
        self.ranks.call(f"save {self.role}")

    def load_checkpoint(self, **_: Any) -> None:
        self.ranks.call(f"load {self.role}")

    def update_weights(self, version: int) -> None:
        self.ranks.call("sync")

    def _later(self, output: dict[str, Any]) -> Any:
        """verl returns a future from a submitted call, which runs until `get` returns."""

        def get() -> dict[str, Any]:
            self.ranks.wait()
            return output

        self.ranks.submit(self.role)
        return SimpleNamespace(get=get)


@pytest.fixture
def pair() -> tuple[Any, Rows, Any, Ranks]:
    """A policy, its batch of three rows, its critic, and the workers that they share."""
    from omegaconf import OmegaConf

    from marl_verl.backend.verl.policies import PolicyRuntime, RayCritic
    from marl_verl.team import PolicyConfig

    store, ranks = MemoryStore(), Ranks()
    batch = put(store, [Row([1, 2], [3], 1.0, [], [])] * 3)
    devices = Devices(Pool("one", 2, 1, ("one",), shared=False), serial=False)
    actor = {"calculate_entropy": False, "entropy_coeff": 0, "use_kl_loss": False, "loss_agg_mode": "token-mean"}
    actor |= {"ppo_epochs": 1, "shuffle": False, "data_loader_seed": 1, "ppo_mini_batch_size": 1}
    actor |= {"ppo_max_token_len_per_gpu": 99, "policy_loss": {"loss_mode": "vanilla"}}
    rollout = {"temperature": 1.0, "free_cache_engine": False}
    section = {
        "algorithm": {"rollout_correction": {"bypass_mode": False, "rollout_is": None, "rollout_rs": None}},
        "actor_rollout_ref": {"actor": actor, "model": {}, "rollout": rollout},
    }
    config = OmegaConf.create(
        {
            **{"marl": {"run": {"seed": 3, "share_prefixes": False}}, "data": {"train_batch_size": 1}},
            "policies": {"one": section},
            "critics": {"one": {"policy": "one", "scope": "policy", "critic": actor}},
        }
    )
    policy = PolicyRuntime(PolicyConfig("one"), config, store, [], devices={"one": devices})
    policy.workers = Group(ranks, "policy", {"grad_norm": [0.0], "actor/entropy_loss": [0.1]}, store)
    policy.weights = policy.workers
    critic = RayCritic("one", config, {"one": devices})
    learnt = {name: [0.0] for name in ("critic/vf_loss", "critic/vf_clipfrac", "grad_norm", "lr")}
    critic.workers = Group(ranks, "critic", learnt, store)
    return policy, batch, critic, ranks


SEEN = [torch.tensor([1, 2]), torch.tensor([3, 4])]
Calls = dict[str, Callable[[], Any]]


@pytest.mark.parametrize(
    "calls",
    [
        lambda policy, batch, critic: {
            "policy": lambda: policy.update(batch, 1),
            "critic": lambda: critic.update(SEEN, np.zeros(2), np.zeros(2)),
        },
        lambda policy, batch, critic: {
            "policy": lambda: policy.save(Path("policy"), 1),
            "critic": lambda: critic.save(Path("critic"), 1),
        },
        lambda policy, batch, critic: {
            "policy": lambda: policy.load(Path("policy")),
            "critic": lambda: critic.load(Path("critic")),
        },
        lambda policy, batch, critic: {"policy": lambda: policy.sync(1), "critic": lambda: critic.values(SEEN)},
    ],
    ids=["update", "save", "load", "sync"],
)
def test_all_ranks_have_one_order(pair: tuple[Any, Rows, Any, Ranks], calls: Callable[[Any, Any, Any], Calls]) -> None:
    policy, batch, critic, ranks = pair
    for _ in range(20):
        at_once(calls(policy, batch, critic))
    assert ranks.seen[0] == ranks.seen[1]
    assert len(ranks.seen[0]) >= 40
    assert ranks.together == 1  # Ray itself does not order the calls of these actors


def test_policies_on_different_devices_do_not_wait_for_each_other() -> None:
    devices = Devices(Pool("both", 2, 1, ("one", "two"), shared=True), serial=False)
    both = threading.Barrier(2, timeout=10)

    def update(policy: str) -> bool:
        with devices.lock(policy):
            return both.wait() >= 0

    assert at_once({"one": lambda: update("one"), "two": lambda: update("two")}) == {"one": True, "two": True}
    serial = Devices(Pool("both", 2, 1, ("one", "two"), shared=True), serial=True)
    assert serial.lock("one") is serial.lock("two")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Found, Found, Found]:
    """What one rank alone finds, and each of two ranks."""
    place = tmp_path_factory.mktemp("ranks")
    make_model(place / "model")
    with cpu_verl():
        alone = find(place, 1)
    both = [FORKS.Process(target=write, args=(rank, 2, place)) for rank in range(2)]
    try:
        for process in both:
            process.start()
        for process in both:
            process.join(300)
            assert process.exitcode == 0
    finally:
        for process in both:
            process.kill()
    first, second = (torch.load(place / f"2_{rank}.pt", weights_only=False) for rank in range(2))
    return alone, first, second


@pytest.mark.parametrize("case", [*CASES, "a critic", "a shared base"])
def test_two_ranks_change_the_weights_as_one_does(found: tuple[Found, Found, Found], case: str) -> None:
    (change, metrics), *each = (results[case] for results in found)
    size = max(float(value.abs().max()) for value in change.values())
    assert size > 1e-3
    for changed, measured in each:
        assert changed.keys() == change.keys()
        for name, value in change.items():
            assert torch.allclose(changed[name], value, rtol=0, atol=1e-5 * size), name
        assert _exact(measured) == pytest.approx(_exact(metrics), rel=1e-5, abs=1e-6)


def test_rows_that_share_change_the_weights_as_separate_ones_do(found: tuple[Found, Found, Found]) -> None:
    for results in found:
        (shared, few), (separate, many) = results[SHARED], results[SEPARATE]
        size = max(float(value.abs().max()) for value in separate.values())
        assert all(torch.allclose(shared[name], value, rtol=0, atol=1e-5 * size) for name, value in separate.items())
        assert few["tokens/computed"] < 0.6 * many["tokens/computed"]
        for name in ("loss", "grad_norm", "entropy"):
            assert few[name] == pytest.approx(many[name], rel=1e-4), name


def _exact(metrics: dict[str, float]) -> dict[str, float]:
    """Metrics without times, memory, and those that verl averages over micro-batches and ranks, equally weighted."""
    averages = ("pg_clipfrac", "pg_clipfrac_lower", "ppo_kl", "vf_clipfrac", "mfu")
    found = {name: value for name, value in metrics.items() if name not in averages and not name.startswith("perf/")}
    assert {"loss", "vf_loss"} & set(found)
    assert {"entropy", "explained_variance"} & set(found)
    return found
