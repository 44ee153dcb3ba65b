"""The local backend's training workers: the updates and checkpoint files of verl's FSDP2 workers, in one process."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from marl_verl import plugins
from tests.verl_actor import Actor, Row, resolved, whole

pytest.importorskip("verl")
from marl_verl_local import one_rank  # noqa: F401 - before other imports of verl

# isort: split
from marl_verl_inspect import export as files
from marl_verl_local import engine
from marl_verl_local.engine import LocalCritic, LocalWorkers
from tensordict import TensorDict
from torch.distributed.fsdp import CPUOffloadPolicy
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
from verl.utils import tensordict_utils as tu
from verl.utils.torch_functional import logprobs_from_logits_v2
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.utils.padding import response_from_nested

from marl_verl.backend.learning.batches import jagged, of_responses, rows_of_nested
from marl_verl.backend.learning.critic import Critic
from marl_verl.backend.learning.workers import CriticWorker, PolicyWorker
from tests.verl_actor import TALK

pytestmark = pytest.mark.slow

Pairs = Sequence[tuple[list[int], list[int]]]
"""Prompts and responses."""
PAIRS: Pairs = [([3, 9], [12, 7, 20, 8]), ([4, 11, 22, 5], [25, 13, 6]), ([8, 8, 21], [14, 15]), ([26], [9])]
SETTINGS = (
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=20",  # several micro-batches an update
    *("actor_rollout_ref.actor.optim.optimizer=AdamW", "actor_rollout_ref.actor.optim.lr=0.01"),
    *("actor_rollout_ref.actor.optim.lr_warmup_steps=3", "actor_rollout_ref.actor.optim.clip_grad=0.3"),
    "actor_rollout_ref.actor.entropy_coeff=0.01",
)
LORA = ("actor_rollout_ref.model.lora_rank=2", "actor_rollout_ref.model.lora_alpha=8")
KL = ("actor_rollout_ref.actor.use_kl_loss=true", "actor_rollout_ref.actor.kl_loss_coef=0.5")
HALF = (
    "actor_rollout_ref.actor.fsdp_config.mixed_precision={param_dtype: bf16, reduce_dtype: fp32}",
    "actor_rollout_ref.model.enable_gradient_checkpointing=true",
)
CRITIC = ("marl.algorithm.name=ippo", "marl.critic.optim.lr=0.01", "marl.critic.ppo_max_token_len_per_gpu=12")
Workers = Callable[..., Any]


def has_reference(config: Any) -> bool:
    return config.actor.use_kl_loss and not config.model.lora_rank


def fsdp2(config: Any, role: str) -> Any:
    """The worker that the verl backend starts in a Ray actor."""
    worker = PolicyWorker(config=config, role=role)
    worker.role = "actor_ref" if has_reference(config) else "actor"
    return worker


def local(config: Any, role: str) -> Any:
    return LocalWorkers(config, has_reference(config))


def started(make: Workers, model: Path, *overrides: str) -> Actor:
    torch.manual_seed(1)  # of adapters
    return Actor(model, "ppo-clip", *SETTINGS, *overrides, make=make)


def update(actor: Actor, rows: Pairs | Sequence[Row] = PAIRS, updates: int = 2) -> dict[str, Any]:
    """Optimiser steps, with old log-probs off the actor's. Returns metrics, and log-probs from before them."""
    rows = [
        row
        if isinstance(row, Row)
        else Row(*row, math.cos(7 * number), [0.1 * math.cos(number + t) for t in row[1]], [0.0] * len(row[1]))
        for number, row in enumerate(rows)
    ]
    _, metrics = actor.update(rows, [torch.zeros(len(row.response)) for row in rows], updates)
    columns = actor.store.get(actor.trained.keys, ("old_log_probs", *["ref_log_prob"] * (KL[0] in actor.overrides)))
    numbers = {name: value for name, value in metrics.items() if not name.startswith(("perf/", "mfu"))}
    return numbers | {name: values.values() for name, values in columns.items()}


def batch(pairs: Pairs, **columns: list[torch.Tensor]) -> Any:
    """Rows as workers get them, with more fields of their response tokens."""
    ones = [torch.ones(len(response), dtype=torch.int64) for _, response in pairs]
    fields = {
        "prompts": [torch.tensor(prompt) for prompt, _ in pairs],
        "responses": [torch.tensor(response) for _, response in pairs],
        "input_ids": [torch.tensor(prompt + response) for prompt, response in pairs],
        "position_ids": [torch.arange(len(prompt) + len(response)) for prompt, response in pairs],
        **{"response_mask": ones, "loss_mask": ones, **columns},
    }
    nested = {name: torch.nested.as_nested_tensor(rows, layout=torch.jagged) for name, rows in fields.items()}
    data = TensorDict(nested, batch_size=len(pairs))
    tu.assign_non_tensor(data, temperature=0.8)
    return data


def weights(worker: Any) -> dict[str, torch.Tensor]:
    module = getattr(worker, "actor", worker).engine.module
    return {name: whole(weight.detach()).clone() for name, weight in module.named_parameters()}


def assert_equal(one: Any, other: Any, relative: float = 1e-6) -> None:
    """Equal to 1e-6 relative: of each tensor's largest value."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_equal(one[name], other[name], relative)
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_equal(left, right, relative)
    elif isinstance(one, torch.Tensor):
        one, other = whole(one), whole(other)
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=0, atol=relative * max(float(one.double().abs().max()), 1e-30))
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=relative, abs=relative / 100)  # a loss is a sum of terms of size 1
    elif hasattr(one, "values"):
        assert_equal(one.values, other.values, relative)
    else:
        assert one == other


def cubed(old_log_prob: Any, log_prob: Any, advantages: Any, response_mask: Any, **_: Any) -> Any:
    """A loss as plugins register it."""
    loss = -(advantages * (log_prob - old_log_prob + 1) ** 3 * response_mask).sum() / response_mask.sum()
    return loss, {"actor/cubed": loss.detach().item()}


CASES: dict[str, tuple[str, ...]] = {"lora and reference": (*LORA, *KL), "bfloat16 and lora": (*HALF, *LORA)}


@pytest.mark.parametrize("case", CASES)
def test_updates_equal_those_of_fsdp2(verl_model: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # verl pins the memory of a reference, for which torch needs a GPU
    monkeypatch.setattr(transformer_impl, "CPUOffloadPolicy", lambda pin_memory: CPUOffloadPolicy(pin_memory=False))
    results, trained = [], []
    for make in (fsdp2, local):
        actor = started(make, verl_model, *CASES[case])
        before = weights(actor.worker)
        results.append([update(actor) for _ in range(2)])
        trained.append(weights(actor.worker))
    assert_equal(*results)
    assert_equal(*trained)
    changed = {name for name, weight in trained[0].items() if not torch.equal(weight, before[name])}
    assert changed == {name for name in before if "lora_" in name}
    assert results[0][0]["grad_norm"] > 0.3  # so that clipping is compared, too


POLICY_LOSS = "actor_rollout_ref.actor.policy_loss"
LOSSES = ("ppo-clip", "ppo-clip-tis", "gspo", "gspo-tis", "reinforce", "hacpo", "imitation")
PARTED = ("clip_cov", "kl_cov", "geo_mean")  # whose losses depend on the rows of a micro-batch
MODES = ("vanilla", "dppo_tv", "dppo_kl", "gspo", "sapo", "gpg", "clip_cov", "kl_cov", "geo_mean", "dro", "cispo")
"""Of verl: `policy_loss.loss_mode` of the loss `verl`."""


@pytest.fixture(scope="module")
def actors(verl_model: Path) -> tuple[list[Actor], dict[str, torch.Tensor]]:
    """A worker of each backend, and their weights."""
    actors = [Actor(verl_model, "ppo-clip", SETTINGS[0], make=make) for make in (fsdp2, local)]
    return actors, actors[0].weights()


def test_losses_are_all_of_verl_and_marl_verl() -> None:
    assert set(MODES) == {mode for mode in POLICY_LOSS_REGISTRY if not mode.startswith("marl:")} - {"bypass_mode"}
    assert set(LOSSES) == {*plugins.discover().names("losses")} - {"verl"}


@pytest.mark.parametrize("loss", [*LOSSES, *MODES, "cubed"])
def test_every_loss_updates_as_on_fsdp2(actors: Any, loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From rows of a tree of conversations, which share prefixes unless the loss forbids it."""
    monkeypatch.setitem(core_algos.POLICY_LOSS_REGISTRY, "cubed", cubed)
    mode = (loss,) if loss in LOSSES else ("verl", f"{POLICY_LOSS}.loss_mode={loss}", f"{POLICY_LOSS}.dro_beta=0.1")
    (workers, initial), results = actors, []
    for actor in workers:
        actor.learn_with(*mode, SETTINGS[0])
        actor.set_weights(initial)
        torch.manual_seed(4)  # clip_cov selects tokens at random
        results.append((update(actor, TALK, 1 if loss == "reinforce" else 2), actor.weights()))
        assert (results[-1][0]["tokens/computed"] < results[-1][0]["tokens/unmerged"]) == (loss not in PARTED)
        assert all(not torch.equal(weight, initial[name]) for name, weight in results[-1][1].items())
    assert_equal(*results)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_probs_are_those_of_verls_function(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "CHUNK", 70)
    logits = torch.randn(9, 33, generator=torch.Generator().manual_seed(0)).mul(9).to(dtype)
    labels, results = torch.arange(9) * 3, []
    for compute in (logprobs_from_logits_v2, engine.log_probs):
        leaf = logits.clone().requires_grad_()
        values = compute(leaf, labels)
        (values * torch.arange(9)).sum().backward()
        results.append([values.detach(), leaf.grad])
    assert_equal(*results)


def test_rows_of_tensors_are_those_of_verls_functions() -> None:
    data = batch(PAIRS)
    for rows in ([0, 1, 2, 3], [2, 0]):
        one, other = (select(data, torch.tensor(rows)) for select in (engine.select, tu.index_select_tensor_dict))
        assert one.keys() == other.keys()
        for name in ("input_ids", "responses"):
            assert_equal(list(one[name].unbind()), list(other[name].unbind()))
    results = []
    for cut in (response_from_nested, of_responses):
        values = torch.linspace(-1, 1, int(data["input_ids"].offsets()[-1]))
        values = torch.nested.nested_tensor_from_jagged(values, data["input_ids"].offsets())
        results.append(list(cut(values, data["response_mask"]).unbind()))
    assert_equal(*results)
    assert_equal(list(rows_of_nested(jagged(results[0]))), results[0])


def test_critic_updates_equal_those_of_fsdp2(verl_model: Path) -> None:
    results = []
    for make in (CriticWorker, LocalCritic):
        config, loss = Critic("one", resolved(verl_model, *CRITIC)[0]).training()
        critic = make(config)
        critic.reset()
        critic.set_loss_fn(loss)
        for _ in range(2):
            data = batch(PAIRS)
            tu.assign_non_tensor(data, compute_loss=False)
            rows = critic.infer_batch(data)["values"].unbind()
            values = [row[-1 - len(rest) : -1] for row, (_, rest) in zip(rows, PAIRS, strict=True)]
            data = batch(PAIRS, values=values, returns=[torch.cos(row + number) for number, row in enumerate(values)])
            options = {"epochs": 1, "seed": 3, "dataloader_kwargs": {"shuffle": False}}
            tu.assign_non_tensor(data, global_batch_size=2.0, mini_batch_size=2, **options)
            metrics = dict(critic.train_mini_batch(data)["metrics"])
        results.append((values, metrics["grad_norm"], metrics["critic/vf_loss"], weights(critic)))
    assert_equal(*results)
    assert float(results[0][0][0].abs().max()) > 0  # a new head computes 0


def state(actor: Actor) -> dict[str, Any]:
    engine = actor.worker.actor.engine
    adam, rate = engine.optimizer.state_dict(), engine.lr_scheduler.state_dict()
    return {"weights": weights(actor.worker), "adam": adam, "rate": rate}


@pytest.mark.parametrize(
    ("overrides", "makers"), [(LORA, (fsdp2, local)), ((), (local, fsdp2))], ids=["lora, to local", "full, from local"]
)
def test_checkpoints_continue_on_either_backend(verl_model: Path, overrides: Any, makers: Any, tmp_path: Path) -> None:
    before, after = (started(make, verl_model, *overrides) for make in makers)
    for _ in range(2):  # the learning rate of the first one is 0
        update(before)
    generators = torch.get_rng_state()
    before.worker.save_checkpoint(str(tmp_path), None, 1, max_ckpt_to_keep=None)
    torch.manual_seed(5)
    after.worker.load_checkpoint(local_path=str(tmp_path), del_local_after_load=False)
    assert torch.equal(torch.get_rng_state(), generators)
    assert_equal(state(before), state(after))
    assert_equal(*(update(actor) for actor in (before, after)))
    assert_equal(state(before), state(after))
    assert all(type(tensor) in (torch.Tensor, torch.nn.Parameter) for tensor in files.assembled(tmp_path).values())
    assert (files.Source("", 0, tmp_path, {}).lora is not None) == bool(overrides)
