"""What a policy with an adapter needs of verl's settings."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from marl_verl.config.resolve import with_lora


def _settings(**model: Any) -> DictConfig:
    config = OmegaConf.create(
        {
            "model": {"lora_rank": 4, "lora_alpha": 8, "lora": {"rank": 0}, **model},
            "actor": {
                "strategy": "fsdp2",
                "checkpoint": {"save_contents": ["model", "optimizer", "extra", "hf_model"]},
            },
            "rollout": {"load_format": "dummy"},
        }
    )
    OmegaConf.set_struct(config, True)
    return config


def test_only_the_adapter_is_saved_and_servers_read_the_base() -> None:
    given = _settings()
    made = with_lora(given)
    assert made.actor.checkpoint.save_contents == ["model", "optimizer", "extra"]
    assert made.actor.checkpoint.save_lora_only is True
    assert made.rollout.load_format == "auto"
    assert given.rollout.load_format == "dummy"  # a copy


def test_a_format_that_reads_weights_stays() -> None:
    given = _settings()
    given.rollout.load_format = "safetensors"
    assert with_lora(given).rollout.load_format == "safetensors"


def test_without_an_adapter_nothing_changes() -> None:
    given = _settings(lora_rank=0)
    assert with_lora(given) == _settings(lora_rank=0)
