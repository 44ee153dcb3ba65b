"""Settings on a CPU that follow from a policy's model."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from marl_verl.config import model_settings
from marl_verl.config.model_settings import BUCKET, cpu_flags, model_folder, with_model_settings
from marl_verl.errors import MarlError

TINY = {"model.embed_tokens.weight": (72, 64), "model.norm.weight": (64,)}
SMOLLM2 = {"model.embed_tokens.weight": (49152, 576), "model.norm.weight": (576,)}  # 108 MiB in float32


def settings(monkeypatch: pytest.MonkeyPatch, shapes: dict[str, Any], *flags: str, **given: Any) -> DictConfig:
    monkeypatch.setattr(model_settings, "shapes", lambda folder: shapes)
    monkeypatch.setattr(model_settings, "cpu_flags", lambda: frozenset(flags))
    config = OmegaConf.create(
        {
            "model": {"path": "/models/one", "lora": {"merge": None}},
            "actor": {"fsdp_config": {"mixed_precision": None}},
            "rollout": {
                "dtype": None,
                "checkpoint_engine": {"update_weights_bucket_megabytes": None},
                "enable_chunked_prefill": False,
            },
        }
    )
    for key, value in given.items():
        OmegaConf.update(config, key.replace("__", "."), value)
    OmegaConf.set_struct(config, True)
    with_model_settings(config, "marl.policies.reader", repeatable=True)
    return config


def chosen(config: DictConfig) -> tuple[Any, ...]:
    precision = config.actor.fsdp_config.mixed_precision
    return OmegaConf.select(config, BUCKET), config.rollout.dtype, precision.param_dtype, config.model.lora.merge


@pytest.mark.parametrize(
    ("shapes", "flags", "expected"),
    [
        (TINY, ["amx_bf16", "avx512_bf16"], (64, "float32", "fp32", False)),
        (SMOLLM2, ["avx512_bf16"], (108, "bfloat16", "bf16", True)),
        (SMOLLM2, ["avx512f"], (108, "float32", "fp32", False)),
        ({}, ["amx_bf16"], (64, "float32", "fp32", False)),  # not on this machine yet
    ],
)
def test_bucket_precision_and_merging_follow_from_the_model(
    monkeypatch: pytest.MonkeyPatch, shapes: dict[str, Any], flags: list[str], expected: tuple[Any, ...]
) -> None:
    config = settings(monkeypatch, shapes, *flags)
    assert chosen(config) == expected
    assert config.actor.fsdp_config.mixed_precision.reduce_dtype == "fp32"  # gradients


def test_given_values_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    precision = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    config = settings(
        monkeypatch,
        SMOLLM2,
        "amx_bf16",
        rollout__dtype="float32",
        actor__fsdp_config__mixed_precision=precision,
        model__lora__merge=True,
        rollout__checkpoint_engine__update_weights_bucket_megabytes=108,
    )
    assert chosen(config) == (108, "float32", "fp32", True)


def test_a_bucket_that_is_too_small_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MarlError) as error:
        settings(monkeypatch, SMOLLM2, rollout__checkpoint_engine__update_weights_bucket_megabytes=107)
    assert str(error.value) == (
        "'marl.policies.reader.rollout.checkpoint_engine.update_weights_bucket_megabytes' is 107, but tensor "
        "'model.embed_tokens.weight' of the model has 108 MiB: leave it out, or set at least 108"
    )


def test_the_folder_of_a_model_in_the_hubs_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub

    answers = {"Qwen/Qwen3-0.6B": str(tmp_path / "snapshot" / "config.json"), "some/other": None}
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda name, file: answers[name])
    assert model_folder("Qwen/Qwen3-0.6B") == tmp_path / "snapshot"
    assert not model_folder("some/other").exists()
    assert model_folder(str(tmp_path)) == tmp_path


def test_the_flags_of_this_cpu() -> None:
    assert cpu_flags() == frozenset() or "sse2" in cpu_flags() or "asimd" in cpu_flags()


@pytest.mark.parametrize(
    ("shapes", "device", "expected"), [(TINY, "cpu", False), (SMOLLM2, "cpu", True), (SMOLLM2, "cuda", False)]
)
def test_large_models_are_updated_alone(
    monkeypatch: pytest.MonkeyPatch, shapes: dict[str, Any], device: str, expected: bool
) -> None:
    monkeypatch.setattr(model_settings, "shapes", lambda folder: shapes)
    monkeypatch.setattr(model_settings, "cpu_run", lambda: device == "cpu")
    assert model_settings.uses_all_cores("/models/one") == expected


def test_updates_one_after_another_and_at_once() -> None:
    """Large models alone. What a step removes are its rows with tensors, and what updates added."""
    from marl_verl.backend.learning.policy import LearningPolicy
    from marl_verl.backend.policies import Policies
    from marl_verl.backend.protocol import Rows
    from marl_verl.backend.runtime import Runtime
    from marl_verl.team import PolicyConfig

    running: list[str] = []
    beside: dict[str, set[str]] = {}
    both = threading.Barrier(2)

    class Learner(LearningPolicy):
        def __init__(self, name: str) -> None:
            Runtime.__init__(self, PolicyConfig(name))

        def call(self, *_: Any, **__: Any) -> None: ...

        def update(self, batch: Rows, updates: int | None = None) -> tuple[Rows, dict[str, float]]:
            running.append(self.name)
            if self.name.startswith("small"):
                both.wait(timeout=20)
            beside[self.name] = {*running} - {self.name}
            if self.name.startswith("small"):
                both.wait(timeout=20)
            running.remove(self.name)
            return Rows([*batch.keys, f"padding {self.name}"], [*batch.tags, {}]), {"loss": float(len(batch))}

    names = ["small one", "large one", "large two", "small two"]
    runtimes = {name: Learner(name) for name in names} | {"judge": Runtime(PolicyConfig("judge"))}
    critics: Any = SimpleNamespace(update=lambda batch, targets: {"critic/small one/vf_loss": 2.0})
    team = Policies(runtimes, critics, alone={name for name in names if name.startswith("large")})
    owners = [*names, *names, "judge", "small one"]
    batch = Rows([f"t_0_{row}" for row in range(len(owners))], [{"policy": owner} for owner in owners])
    metrics, used = team.update(batch, batch.part(range(9)), None)  # nothing can be learnt from the last row
    assert metrics == {f"policy/{name}/loss": 2.0 for name in names} | {"critic/small one/vf_loss": 2.0}
    assert sorted(used) == sorted([f"padding {name}" for name in names] + [key for key in batch.keys if key != "t_0_8"])
    none: set[str] = set()
    small = {"small one": {"small two"}, "small two": {"small one"}}
    assert beside == {"large one": none, "large two": none, **small}
