"""The local backend's training workers: the updates and checkpoint files of verl's FSDP2 workers, in one process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf, open_dict

from marl_verl.config.compose import compose, with_overrides
from marl_verl.config.resolve import resolve
from marl_verl.team import read_team
from tests.verl_actor import RECIPE, cpu_verl, make_model

pytest.importorskip("verl")
pytestmark, LONG = pytest.mark.slow, pytest.mark.long

ROWS = [([3, 9], [12, 7, 20, 8]), ([4, 11, 22, 5], [25, 13, 6]), ([8, 8, 21], [14, 15]), ([26], [9])]
SETTINGS = (
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=12",  # several micro-batches an update
    "actor_rollout_ref.actor.optim.lr=0.01",
    "actor_rollout_ref.actor.optim.lr_warmup_steps=3",
    "actor_rollout_ref.actor.optim.clip_grad=0.3",
    "actor_rollout_ref.rollout.temperature=0.8",
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with cpu_verl():
        folder = tmp_path_factory.mktemp("local")
        make_model(folder / "model")
        (folder / "recipe.yaml").write_text(RECIPE)
        yield folder


@pytest.fixture(scope="module")
def composed(folder: Path) -> Any:
    return compose(folder / "recipe.yaml", [*SETTINGS, f"marl.policies.one.model.path={folder / 'model'}"], "cpu")


def resolved(composed: Any, *overrides: str) -> Any:
    config = with_overrides(composed, list(overrides))
    marl: Any = OmegaConf.to_container(config.marl, resolve=True)
    return resolve(config, read_team(marl))


def fsdp2(config: Any, reference: bool = False) -> Any:
    """The worker that the verl backend starts in a Ray actor."""
    from verl.workers.engine_workers import ActorRolloutRefWorker

    config = deepcopy(config)
    with open_dict(config):
        config.ref.fsdp_config.mixed_precision = config.actor.fsdp_config.mixed_precision
    worker = ActorRolloutRefWorker(config=config, role="actor")
    worker.role = "actor_ref" if reference else "actor"
    return worker


def local(config: Any, reference: bool = False) -> Any:
    from marl_verl.backend.local.worker import LocalWorkers

    return LocalWorkers(config, reference)


def started(make: Workers, config: Any, loss: Any = None, reference: bool = False) -> Any:
    from functools import partial

    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.utils.losses import ppo_loss

    torch.manual_seed(1)
    worker = make(config.policies.one.actor_rollout_ref, reference)
    worker.init_model()
    actor = omega_conf_to_dataclass(config.policies.one.actor_rollout_ref.actor)
    worker.set_loss_fn(partial(ppo_loss, config=actor))
    return worker


def batch(**columns: list[torch.Tensor]) -> Any:
    """The rows, with more fields of their response tokens."""
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu

    fields = {
        "prompts": [torch.tensor(prompt) for prompt, _ in ROWS],
        "responses": [torch.tensor(response) for _, response in ROWS],
        "input_ids": [torch.tensor(prompt + response) for prompt, response in ROWS],
        "position_ids": [torch.arange(len(prompt) + len(response)) for prompt, response in ROWS],
        "response_mask": [torch.ones(len(response), dtype=torch.int64) for _, response in ROWS],
        "loss_mask": [torch.ones(len(response), dtype=torch.int64) for _, response in ROWS],
        **columns,
    }
    nested = {name: torch.nested.as_nested_tensor(rows, layout=torch.jagged) for name, rows in fields.items()}
    data = TensorDict(nested, batch_size=len(ROWS))
    tu.assign_non_tensor(data, temperature=0.8)
    return data


def log_probs(compute: Any, name: str = "log_probs", **options: Any) -> list[torch.Tensor]:
    """The model's log-probs or entropies of each response token, as they are put into the rows."""
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.padding import response_from_nested

    data = batch()
    tu.assign_non_tensor(data, calculate_entropy=True, compute_loss=False, **options)
    return list(response_from_nested(compute(data)[name].float(), batch()["response_mask"]).unbind())


def update(worker: Any, reference: bool = False, adapter: bool = False, updates: int = 2) -> dict[str, Any]:
    """Two optimiser steps, with old log-probs off the actor's. Returns metrics and log-probs from before them."""
    from verl.utils import tensordict_utils as tu

    now, entropy = (log_probs(worker.compute_log_prob, name) for name in ("log_probs", "entropy"))
    fields = {"old_log_probs": [row + 0.1 * torch.cos(row * 50) for row in now]}
    fields["advantages"] = [torch.linspace(-1, 1, len(row)) - number / 2 for number, row in enumerate(now)]
    if reference:
        compute = worker.compute_log_prob if adapter else worker.compute_ref_log_prob
        fields["ref_log_prob"] = log_probs(compute, no_lora_adapter=True) if adapter else log_probs(compute)
    data = batch(**fields)
    tu.assign_non_tensor(
        data,
        calculate_entropy=True,
        distillation_use_topk=False,
        distillation_only=False,
        global_batch_size=float(len(ROWS) / updates),
        mini_batch_size=len(ROWS) // updates,
        epochs=1,
        seed=3,
        dataloader_kwargs={"shuffle": False},
    )
    metrics = dict(worker.update_actor(data)["metrics"])
    numbers = {name: values for name, values in metrics.items() if not name.startswith(("perf/", "mfu"))}
    return {**numbers, **fields, "entropy": entropy}


def plain(value: Any) -> Any:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def weights(worker: Any) -> dict[str, torch.Tensor]:
    module = getattr(worker, "actor", worker).engine.module
    return {name: plain(weight.detach()).clone() for name, weight in module.named_parameters()}


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
        one, other = plain(one), plain(other)
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=0, atol=relative * max(float(one.double().abs().max()), 1e-30))
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=relative)
    elif hasattr(one, "values"):
        assert_equal(one.values, other.values, relative)
    else:
        assert one == other


def cubed(
    old_log_prob: Any, log_prob: Any, advantages: Any, response_mask: Any, loss_agg_mode: str, config: Any, **_: Any
) -> Any:
    """A loss as plugins register it."""
    loss = -(advantages * (log_prob - old_log_prob + 1) ** 3 * response_mask).sum() / response_mask.sum()
    return loss, {"actor/cubed": loss.detach().item()}


CASES: dict[str, tuple[str, ...]] = {
    "ppo-clip": ("marl.algorithm.options.loss=ppo-clip",),
    "a plugin's loss": (),
    "lora": LORA,
    "reference": KL,
    "lora and reference": (*LORA, *KL),
    "bfloat16": HALF,
    "bfloat16 and lora": (*HALF, *LORA),
}
SHORT = ("a plugin's loss", "lora and reference", "bfloat16 and lora")
"""The others have a part of these."""


@pytest.mark.parametrize("case", [pytest.param(name, marks=() if name in SHORT else LONG) for name in CASES])
def test_updates_equal_those_of_fsdp2(composed: Any, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.fsdp import CPUOffloadPolicy
    from verl.trainer.ppo import core_algos
    from verl.workers.engine.fsdp import transformer_impl

    # verl pins the memory of a reference, for which torch needs a GPU
    monkeypatch.setattr(transformer_impl, "CPUOffloadPolicy", lambda pin_memory: CPUOffloadPolicy(pin_memory=False))
    monkeypatch.setitem(core_algos.POLICY_LOSS_REGISTRY, "cubed", cubed)
    config, reference, adapter = resolved(composed, *CASES[case]), "reference" in case, "lora" in case
    if not CASES[case]:
        config.policies.one.actor_rollout_ref.actor.policy_loss.loss_mode = "cubed"
    results, trained = [], []
    for make in (fsdp2, local):
        worker = started(make, config, reference=reference and not adapter)
        before = weights(worker)
        results.append([update(worker, reference, adapter) for _ in range(2)])
        trained.append(weights(worker))
    assert_equal(*results)
    assert_equal(*trained)
    changed = {name for name, weight in trained[0].items() if not torch.equal(weight, before[name])}
    assert changed == {name for name in before if not adapter or "lora_" in name}
    assert results[0][0]["grad_norm"][0] > 0.3  # so that clipping is compared, too


PROMPTS = ([3, 9, 4], [8, 8])
SHARING = [(PROMPTS[0], [12, 7, 20, 8]), (PROMPTS[1], [14]), (PROMPTS[0], [25]), (PROMPTS[1], [9, 6]), ([5], [7])]
SHARING += [(PROMPTS[0], [13, 6]), (PROMPTS[0], [11, 2, 4]), ([26], [9])]


@pytest.mark.parametrize(("overrides", "tolerance"), [((*LORA, *KL), 1e-5), (HALF, 0.05)])
def test_rows_of_large_models_share_their_prompts(
    composed: Any, overrides: tuple[str, ...], tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loss, gradient and log-probs are those of rows that share nothing; the order of their sums differs."""
    from marl_verl.backend.local import engine

    monkeypatch.setattr(sys.modules[__name__], "ROWS", SHARING)
    one_micro_batch = [f"actor_rollout_ref.{key}_max_token_len_per_gpu=64" for key in ("actor.ppo", "rollout.log_prob")]
    config = resolved(composed, *one_micro_batch, *overrides)
    results = []
    for least in (10**9, 0):
        monkeypatch.setattr(engine, "LARGE", least)
        both = {"reference": overrides != HALF, "adapter": overrides != HALF}  # an adapter's reference is its base
        results.append(update(started(local, config), **both))
    assert_equal(*results, tolerance)


def test_micro_batches_keep_rows_of_a_prompt_together(monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.utils import tensordict_utils as tu

    from marl_verl.backend.local.sharing import Shared, micro_batches, sequences_of

    monkeypatch.setattr(sys.modules[__name__], "ROWS", SHARING)
    data = batch()
    assert sequences_of(data) == [[0, 2], [5, 6], [1, 3], [4], [7]]  # at most twice the tokens of the prompt
    tu.assign_non_tensor(data, max_token_len_per_gpu=16)
    parts, rows = micro_batches(data)
    assert rows == [[0, 2, 5, 6], [1, 3, 4, 7]]
    assert [len(part) for part in parts] == [4, 4]
    inputs = Shared(parts[0], torch.float32).inputs
    assert inputs["input_ids"].tolist() == [[3, 9, 4, 12, 7, 20], [3, 9, 4, 13, 11, 2]]
    assert inputs["position_ids"].tolist() == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 3, 4]]
    assert (inputs["attention_mask"][1, 0] == 0).int().tolist()[3:] == [
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 0, 1, 0],
        [1, 1, 1, 0, 1, 1],
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_probs_are_those_of_verls_function(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.utils.torch_functional import logprobs_from_logits_v2

    from marl_verl.backend.local import quick

    monkeypatch.setattr(quick, "CHUNK", 70)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(9, 33, generator=generator).mul(9).to(dtype)
    labels, results = torch.arange(9) * 3, []
    for compute in (logprobs_from_logits_v2, quick.log_probs):
        leaf = logits.clone().requires_grad_()
        values = compute(leaf, labels)
        (values * torch.arange(9)).sum().backward()
        results.append([values.detach(), leaf.grad])
    assert_equal(*results)


def test_rows_of_tensors_are_those_of_verls_functions() -> None:
    from verl.utils import tensordict_utils as tu
    from verl.workers.engine.utils import prepare_micro_batches
    from verl.workers.utils.padding import no_padding_2_padding, response_from_nested

    from marl_verl.backend.learning.batches import jagged, of_responses, rows_of_nested
    from marl_verl.backend.local import quick

    data = batch()
    tu.assign_non_tensor(data, max_token_len_per_gpu=99)
    for rows in ([0, 1, 2, 3], [2, 0]):
        one, other = (select(data, torch.tensor(rows)) for select in (quick.select, tu.index_select_tensor_dict))
        assert one.keys() == other.keys()
        assert one is not data
        for name in ("input_ids", "responses"):
            assert_equal(list(one[name].unbind()), list(other[name].unbind()))
    (part,), (places,) = quick.micro_batches(data)
    (verls,), (order,) = prepare_micro_batches(data)
    assert [*places] == order
    assert_equal(part["input_ids"].values(), verls["input_ids"].values())
    results = []
    for pad, cut in ((no_padding_2_padding, response_from_nested), (quick.padded_responses, of_responses)):
        leaf = torch.linspace(-1, 1, int(data["input_ids"].offsets()[-1])).requires_grad_()
        values = torch.nested.nested_tensor_from_jagged(leaf, data["input_ids"].offsets())
        padded = pad(values, data)
        (padded * torch.arange(padded.numel()).view_as(padded)).sum().backward()
        results.append((padded, leaf.grad, list(cut(values, data["response_mask"]).unbind())))
    assert_equal(*results)
    assert_equal(list(rows_of_nested(jagged(results[0][2]))), results[0][2])


def critic_config(composed: Any) -> Any:
    """What a critic gives to its worker, and the loss."""
    from marl_verl.backend.learning.critic import Critic

    return Critic("one", resolved(composed, *CRITIC).critics.one, updates=1).training()


def test_critic_updates_equal_those_of_fsdp2(composed: Any) -> None:
    from verl.utils import tensordict_utils as tu

    from marl_verl.backend.learning.critic_worker import CriticWorker
    from marl_verl.backend.local.worker import LocalCritic

    results = []
    for make in (CriticWorker, LocalCritic):
        config, loss = critic_config(composed)
        critic = make(config)
        critic.reset()
        critic.set_loss_fn(loss)
        for _ in range(2):
            data = batch()
            tu.assign_non_tensor(data, compute_loss=False)
            values = [
                row[-1 - len(rest) : -1]
                for row, (_, rest) in zip(critic.infer_batch(data)["values"].unbind(), ROWS, strict=True)
            ]
            data = batch(values=values, returns=[torch.cos(row + number) for number, row in enumerate(values)])
            options = {"epochs": 1, "seed": 3, "dataloader_kwargs": {"shuffle": False}}
            tu.assign_non_tensor(data, global_batch_size=2.0, mini_batch_size=2, **options)
            metrics = dict(critic.train_mini_batch(data)["metrics"])
        results.append((values, metrics["grad_norm"], metrics["critic/vf_loss"], weights(critic)))
    assert_equal(*results)
    assert float(results[0][0][0].abs().max()) > 0  # a new head computes 0


def test_policies_with_a_shared_base_train_as_alone(composed: Any) -> None:
    from verl.utils.config import omega_conf_to_dataclass

    from marl_verl.backend.learning.adapters import AdapterSettings
    from marl_verl.backend.local.worker import LocalSharedWorkers

    config = resolved(composed, *LORA)
    alone = started(local, config)
    update(alone)
    optim = omega_conf_to_dataclass(config.policies.one.actor_rollout_ref.actor).optim
    policies = {"one": AdapterSettings(1, optim), "two": AdapterSettings(2, optim)}
    both = LocalSharedWorkers(config.policies.one.actor_rollout_ref, policies=policies)
    both.init_model()
    for policy in policies:
        both.use(policy)
        both.set_loss_fn(alone.actor.loss_fn)
        update(both)
    two = weights(both)
    assert any(not torch.equal(weight, two[name]) for name, weight in weights(alone).items())
    both.use("one")
    assert_equal(weights(both), weights(alone))


def state(worker: Any) -> dict[str, Any]:
    engine = worker.actor.engine
    return {"weights": weights(worker), "adam": engine.optimizer.state_dict(), "rate": engine.lr_scheduler.state_dict()}


@pytest.mark.parametrize(
    ("overrides", "makers"),
    [(LORA, (fsdp2, local)), ((), (local, fsdp2))],
    ids=["lora, to local", "full, from local"],
)
def test_checkpoints_continue_on_either_backend(
    composed: Any, overrides: tuple[str, ...], makers: tuple[Workers, Workers], tmp_path: Path
) -> None:
    from marl_verl.run.checkpoint import weights as files

    config = resolved(composed, *overrides)
    before, after = (started(make, config) for make in makers)
    for _ in range(2):  # the learning rate of the first one is 0
        update(before)
    generators = torch.get_rng_state()
    before.save_checkpoint(str(tmp_path), None, 1, max_ckpt_to_keep=None)
    torch.manual_seed(5)
    after.load_checkpoint(local_path=str(tmp_path), del_local_after_load=False)
    assert torch.equal(torch.get_rng_state(), generators)
    assert_equal(state(before), state(after))
    assert_equal(*(update(worker) for worker in (before, after)))
    assert_equal(state(before), state(after))
    trained = files.assembled(tmp_path)
    assert all(type(tensor) in (torch.Tensor, torch.nn.Parameter) for tensor in trained.values())
    assert (files.lora(tmp_path) is not None) == bool(overrides)
    assert files.policy_change(str(config.policies.one.actor_rollout_ref.model.path), tmp_path)[1]


def test_checkpoint_files_are_those_of_fsdp2(composed: Any, tmp_path: Path) -> None:
    config, contents = resolved(composed), []
    for make in (fsdp2, local):
        worker, folder = started(make, config), tmp_path / make.__name__
        update(worker)
        worker.save_checkpoint(str(folder), None, 1)
        names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
        kinds = [
            {
                key: type(value)
                for part in torch.load(folder / f"{file}_world_size_1_rank_0.pt", weights_only=False).items()
                for key, value in flat(part)
            }
            for file in ("model", "optim")
        ]
        contents.append((names, kinds))
    assert contents[0] == contents[1]


def flat(item: tuple[Any, Any]) -> list[tuple[str, Any]]:
    """The leaves of a nested dictionary, with their paths."""
    key, value = item
    if not isinstance(value, dict):
        return [(str(key), value)]
    return [(f"{key}/{path}", leaf) for part in value.items() for path, leaf in flat(part)]


def test_nothing_listens_and_nothing_is_started(folder: Path) -> None:
    """In a process of its own, where the process group is the backend's."""
    command = [sys.executable, "-m", "tests.test_local_worker", str(folder)]
    subprocess.run(command, check=True, timeout=120, cwd=Path(__file__).parents[1])


def train_alone(folder: Path) -> None:
    """Update a policy, and check what this process has opened."""
    import marl_verl.backend.local.worker  # noqa: F401 - verl sets variables when it is imported

    before = dict(os.environ)
    config = resolved(
        compose(folder / "recipe.yaml", [*SETTINGS, f"marl.policies.one.model.path={folder / 'model'}"], "cpu")
    )
    worker = started(local, config)
    update(worker)
    worker.save_checkpoint(str(folder / "alone"), None, 1)
    import psutil
    import ray

    process = psutil.Process()
    assert not process.net_connections(kind="all")
    assert not process.children()
    assert not ray.is_initialized()
    assert "vllm" not in sys.modules
    assert {**os.environ} == before


if __name__ == "__main__":
    train_alone(Path(sys.argv[1]))
