"""Rows packed into one sequence, as verl's engine gives them to a model: each row is computed as if it were alone."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from marl_verl.config.checks import PACKED, kernel_problems
from tests.test_losses import ROWS, log_probs
from tests.verl_actor import TALK, Actor

pytestmark = pytest.mark.slow
MODEL = "actor_rollout_ref.model"
MANY = (*ROWS, *TALK)  # the turns of a conversation are one path
ONE_MICRO_BATCH = ("actor_rollout_ref.actor.ppo_max_token_len_per_gpu=65536",)


@pytest.mark.parametrize(
    "settings",
    [
        (f"{MODEL}.use_remove_padding=true", "marl.run.share_prefixes=false"),
        (f"{MODEL}.use_remove_padding=true",),
        (f"{MODEL}.use_fused_kernels=true", f"{MODEL}.use_remove_padding=true"),
    ],
    ids=["packed", "packed, with trees", "packed and fused, with paths"],
)
def test_packed_rows_update_as_padded_ones(settings: Any, verl_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModelForCausalLM, Qwen3ForCausalLM

    forward = Qwen3ForCausalLM.forward
    monkeypatch.setattr(Qwen3ForCausalLM, "forward", forward)  # puts back what verl replaces for fused kernels
    with torch.no_grad():
        sampled = log_probs(AutoModelForCausalLM.from_pretrained(verl_model).double(), MANY)
    found = {}
    for name, chosen in (("padded", ()), ("packed", settings)):
        actor = Actor(verl_model, "ppo-clip", *ONE_MICRO_BATCH, *chosen)
        gradient, metrics = actor.update(MANY, sampled)
        assert actor.worker.masks() == (len(chosen) < 2 or "share" in chosen[1])
        rows = [row for key, row in actor.store.rows.items() if not key.startswith("pad")]
        old = [row["log_probs"][-len(one.response) - 1 : -1] for row, one in zip(rows, MANY, strict=True)]
        moved = [torch.tensor(one.moved) for one in MANY]
        found[name] = gradient, metrics, [values + far for values, far in zip(old, moved, strict=True)]
    size = max(float(value.abs().max()) for value in found["padded"][0].values())
    for name, value in found["padded"][0].items():
        assert torch.allclose(found["packed"][0][name], value, rtol=0, atol=1e-5 * size), name
    for which in ("padded", "packed"):
        for values, expected in zip(found[which][2], sampled, strict=True):
            assert torch.allclose(values.double(), expected, atol=1e-5), which
    assert found["packed"][1]["entropy"] == pytest.approx(found["padded"][1]["entropy"], rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "config", "message"),
    [
        ({}, {"model_type": "opt"}, "models of type 'opt' are not known to separate packed rows with attention 'sdpa'"),
        ({"use_fused_kernels": True}, {"final_logit_softcapping": 30.0}, "ignore 'final_logit_softcapping'"),
        ({"use_remove_padding": False}, {"model_type": "opt"}, None),
        ({"use_fused_kernels": True}, {"final_logit_softcapping": None}, None),
    ],
)
def test_what_gives_wrong_log_probs_is_refused(settings: Any, config: Any, message: str | None, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma2", **config}))
    kernels = {"use_liger": False, "use_fused_kernels": False, "fused_kernel_options": {"impl_backend": "torch"}}
    model = OmegaConf.create({"path": str(tmp_path), "use_remove_padding": True, **kernels, **settings})
    problems = list(kernel_problems(model, "marl.policies.one", "sdpa"))
    assert len(problems) == bool(message)
    assert message is None or message in problems[0]


@pytest.mark.parametrize("family", PACKED)
def test_a_model_type_separates_packed_rows(family: str) -> None:
    """As verl calls a model: no attention mask, positions that begin again with each row."""
    from transformers import AutoConfig, AutoModelForCausalLM

    small = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    small |= {"num_key_value_heads": 2, "head_dim": 8, "vocab_size": 50, "pad_token_id": 0, "eos_token_id": 2}
    config = AutoConfig.for_model(family)
    for key, value in small.items():
        setattr(config, key, value)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[0], config.layer_types[-1]]
    if getattr(config, "sliding_window", None):
        config.sliding_window = 4
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.3)
    rows = [torch.randint(3, 50, (length,)) for length in (5, 9, 3, 12)]
    packed, positions = torch.cat(rows)[None], torch.cat([torch.arange(len(row)) for row in rows])[None]
    with torch.no_grad():
        separate = torch.cat([model(row[None], use_cache=False).logits[0] for row in rows]).log_softmax(-1)
        given = {"attention_mask": None, "position_ids": positions, "use_cache": False}
        together = model(packed, **given).logits[0].log_softmax(-1)
        mixed = model(packed, use_cache=False).logits[0].log_softmax(-1)
    assert torch.allclose(together, separate, atol=2e-5)
    assert not torch.allclose(mixed, separate, atol=1e-2)  # without positions the rows see each other
