"""Settings on a CPU that follow from a policy's model."""

from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from marl_verl.config import placement, resolve
from marl_verl.config.resolve import BUCKET, use_adapter, with_model_settings

TINY = {"model.embed_tokens.weight": (72, 64), "model.norm.weight": (64,)}
SMOLLM2 = {"model.embed_tokens.weight": (49152, 576), "model.norm.weight": (576,)}  # 108 MiB in float32


def settings(monkeypatch: pytest.MonkeyPatch, shapes: dict[str, Any], *flags: str) -> DictConfig:
    monkeypatch.setattr(resolve, "shapes", lambda folder: shapes)
    monkeypatch.setattr(resolve, "cpu_flags", lambda: frozenset(flags))
    config = OmegaConf.create(
        {
            "model": {"path": "/models/one", "lora": {"merge": None}},
            "actor": {"fsdp_config": {"mixed_precision": None}},
            "rollout": {"dtype": None, "checkpoint_engine": {"update_weights_bucket_megabytes": None}},
        }
    )
    with_model_settings(config)
    return config


@pytest.mark.parametrize(
    ("shapes", "flags", "expected"),
    [
        (TINY, ["amx_bf16", "avx512_bf16"], (64, "float32", "fp32", False)),
        (SMOLLM2, ["avx512_bf16"], (108, "bfloat16", "bf16", True)),
        (SMOLLM2, ["avx512f"], (108, "float32", "fp32", False)),
    ],
)
def test_bucket_precision_and_merging_follow_from_the_model(
    monkeypatch: pytest.MonkeyPatch, shapes: dict[str, Any], flags: list[str], expected: tuple[Any, ...]
) -> None:
    config = settings(monkeypatch, shapes, *flags)
    bucket, precision = OmegaConf.select(config, BUCKET), config.actor.fsdp_config.mixed_precision
    assert (bucket, config.rollout.dtype, precision.param_dtype, config.model.lora.merge) == expected
    assert precision.reduce_dtype == "fp32"  # gradients


@pytest.mark.parametrize(
    ("shapes", "device", "expected"), [(TINY, "cpu", False), (SMOLLM2, "cpu", True), (SMOLLM2, "cuda", False)]
)
def test_large_models_update_alone(monkeypatch: pytest.MonkeyPatch, shapes: Any, device: str, expected: bool) -> None:
    monkeypatch.setattr(placement, "shapes", lambda folder: shapes)
    monkeypatch.setattr(placement, "cpu_run", lambda: device == "cpu")
    assert placement.uses_all_cores("/models/one") == expected


# What a policy with an adapter needs of verl's settings


def test_only_the_adapter_is_saved_and_servers_read_the_base() -> None:
    model = {"lora_rank": 4, "lora_alpha": 8, "lora": {"rank": 0}}
    actor = {"strategy": "fsdp2", "checkpoint": {"save_contents": ["model", "optimizer", "extra", "hf_model"]}}
    made = OmegaConf.create({"model": model, "actor": actor, "rollout": {"load_format": "dummy"}})
    use_adapter(made)
    assert made.actor.checkpoint.save_contents == ["model", "optimizer", "extra"]
    assert made.actor.checkpoint.save_lora_only is True
    assert made.rollout.load_format == "auto"
