"""The training worker of several adapters on one model: each policy learns, is saved and loaded as in its own."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from marl_verl.backend.learning import workers
from tests.verl_actor import Actor, Row

pytestmark = pytest.mark.slow
SEEDS, RATES = {"one": 11, "two": 22}, {"one": 0.05, "two": 0.02}
SETTINGS = (
    *("actor_rollout_ref.model.lora_rank=2", "actor_rollout_ref.model.lora_alpha=8"),
    *("actor_rollout_ref.actor.optim.optimizer=AdamW", "actor_rollout_ref.actor.optim.clip_grad=1.0"),
)
ROWS = {
    "one": [Row([5, 6, 7], [8, 9], 1.0, [0.0, 0.0], [0.0, 0.0]), Row([5, 6], [4, 9], -0.5, [0.0, 0.0], [0.0, 0.0])],
    "two": [Row([9, 6, 7], [5, 5], 1.0, [0.0, 0.0], [0.0, 0.0]), Row([8, 6], [7, 7], -0.5, [0.0, 0.0], [0.0, 0.0])],
}
LOG_PROBS = [torch.full((2,), -3.0), torch.full((2,), -3.0)]


def _own(model: Path, policy: str) -> Actor:
    """A policy with a worker of its own."""
    torch.manual_seed(SEEDS[policy])
    return Actor(model, "ppo-clip", *SETTINGS, f"actor_rollout_ref.actor.optim.lr={RATES[policy]}")


def _shared(model: Path) -> Actor:
    """Both policies on one worker."""
    from verl.utils.config import omega_conf_to_dataclass

    def make(config: object, role: str) -> workers.PolicyWorker:
        policies = {}
        for name, rate in RATES.items():
            optim = replace(omega_conf_to_dataclass(config.actor).optim, lr=rate)  # type: ignore[attr-defined]
            policies[name] = workers.Adapter(SEEDS[name], optim)
        return workers.PolicyWorker(config=config, role=role, adapters=policies)

    actor = Actor(model, "ppo-clip", *SETTINGS, make=make)
    for name in SEEDS:
        actor.worker.use(name)
        actor.worker.set_loss_fn(actor.policy.loss())
    return actor


def _learn(actor: Actor, policy: str, times: int = 1) -> None:
    for _ in range(times):
        actor.update(ROWS[policy], LOG_PROBS)


def _equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(weight, other[name]) for name, weight in one.items())


def test_each_policy_learns_as_in_a_worker_of_its_own(verl_model: Path) -> None:
    actors = {name: partial(_own, verl_model, name) for name in SEEDS}
    begun, alone = {}, {}
    for name, make in actors.items():
        actor = make()
        begun[name] = actor.weights()
        _learn(actor, name, times=2)
        alone[name] = actor.weights()
    assert not _equal(begun["one"], begun["two"])
    both = _shared(verl_model)
    for name in SEEDS:
        both.worker.use(name)
        assert _equal(both.weights(), begun[name])
    for _ in range(2):  # in turns
        for name in SEEDS:
            both.worker.use(name)
            _learn(both, name)
    for name in SEEDS:
        both.worker.use(name)
        assert _equal(both.weights(), alone[name])
        assert not _equal(both.weights(), begun[name])


def test_copies_to_the_host_are_awaited(verl_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `param_offload` on a GPU, verl's copies of parameters go on after its call."""
    both = _shared(verl_model)
    both.worker.use("one")
    whole, late = both.weights(), [(w.data, w.data.clone()) for w in both.worker.actor._trained()]

    def arrive() -> None:
        while late:
            parameter, value = late.pop()
            parameter.copy_(value)

    monkeypatch.setattr(workers, "get_torch_device", lambda: SimpleNamespace(synchronize=arrive))
    for parameter, _ in late:
        parameter.zero_()
    both.worker.use("two")
    both.worker.use("one")
    assert _equal(both.weights(), whole)


def test_checkpoints_are_those_of_separate_policies(verl_model: Path, tmp_path: Path) -> None:
    both, whole = _shared(verl_model), {}
    for name in SEEDS:
        both.worker.use(name)
        _learn(both, name)
        both.worker.save_checkpoint(str(tmp_path / name), None, 1)
    for name in SEEDS:
        both.worker.use(name)
        _learn(both, name)
        whole[name] = both.weights()
    resumed = _shared(verl_model)
    for name in SEEDS:
        resumed.worker.use(name)
        resumed.worker.load_checkpoint(str(tmp_path / name), del_local_after_load=False)
    for name in SEEDS:
        resumed.worker.use(name)
        _learn(resumed, name)
        assert _equal(resumed.weights(), whole[name])
    for name in SEEDS:
        alone = _own(verl_model, name)  # a worker with one policy reads them, too
        alone.worker.load_checkpoint(str(tmp_path / name), del_local_after_load=False)
        _learn(alone, name)
        assert _equal(alone.weights(), whole[name])


def _find(weights: dict[str, torch.Tensor], *parts: str) -> torch.Tensor:
    (only,) = (weight for name, weight in weights.items() if all(part in name for part in parts))
    return only


def test_the_servers_receive_base_and_adapter_merged(verl_model: Path) -> None:
    """verl merges an adapter into the weights of the servers, base + (alpha / r) B A; training does not notice."""
    merged = "actor_rollout_ref.model.lora.merge=true"
    actor = Actor(verl_model, "ppo-clip", *SETTINGS[:2], merged, "actor_rollout_ref.actor.optim.lr=1")
    rows = [Row([5, 6, 7], [8, 9], advantage, [0.0, 0.0], [0.0, 0.0]) for advantage in (1.0, -0.5)]
    for _ in range(6):  # A begins to learn when B is not zero any more
        actor.update(rows, LOG_PROBS)
    before = actor.weights()
    sent = dict(actor.worker.actor.engine.get_per_tensor_param(base_sync_done=True)[0])
    place = "layers.0.mlp.down_proj."
    base = _find(before, place, "base_layer")
    update = 8 / 2 * _find(before, place, "lora_B") @ _find(before, place, "lora_A")
    assert update.abs().max() > 0.005  # more than the tolerance below
    assert not any("lora" in name or "base_layer" in name for name in sent)
    layer = sent[f"model.{place}weight"].double()
    torch.testing.assert_close(layer, base + update, rtol=0.01, atol=2e-3)  # sent in bfloat16
    after = actor.weights()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
