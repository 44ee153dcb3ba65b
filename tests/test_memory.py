"""The estimate of a run's memory, against cases computed by hand; the sizes are those of public models."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from marl_verl_diagnose import memory
from marl_verl_diagnose.memory import GIB, Need, adapter_parameters, sizes
from omegaconf import OmegaConf

from marl_verl.config.compose import compose
from marl_verl.config.hardware import HARDWARE_VARIABLE
from marl_verl.config.resolve import resolve
from marl_verl.config.stored import team_of
from marl_verl.errors import MarlError
from marl_verl.models import count
from marl_verl.models.count import parameters, shapes
from tests.model_configs import CONFIGS, SMOLLM2

RECIPE = """
defaults: [marl_trainer, _self_]
marl:
  task: {name: inventory}
  workflow: {name: inventory}
  algorithm: {name: grpo}
  agents: {holder: {policy: one}, asker: {policy: two}}
  policies: {one: {model: {path: MODEL}}, two: {model: {path: MODEL}}}
data: {max_prompt_length: 1024, max_response_length: 1024}
"""
# a layer of it: queries and output 2 x 3584 x 3584, keys and values 2 x 512 x 3584, MLP 3 x 3584 x 18944
LAYER, ENDS = 233_046_016, 2 * 152_064 * 3584
P, TOKENS = 28 * LAYER + ENDS, 16384


@pytest.fixture(autouse=True)
def _hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(count, "_hub_config", lambda name: {**CONFIGS, "smol/lm2": SMOLLM2}[name])
    monkeypatch.setattr(memory, "gpu_bytes", lambda: 80.0 * GIB)
    count.model_config.cache_clear()
    yield
    count.model_config.cache_clear()


@pytest.fixture
def needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def estimate(*overrides: str, model: str = "Qwen/Qwen2.5-7B", hardware: str = "gpu") -> dict[str, Need]:
        monkeypatch.setenv(HARDWARE_VARIABLE, hardware)
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(RECIPE.replace("MODEL", model))
        config = compose(recipe, list(overrides), hardware=hardware)
        team = team_of(config)
        batch = dict.fromkeys(team.policies, 10**6)
        return {need.where: need for need in memory.estimate(resolve(config, team), team, {}, batch)}

    return estimate


@pytest.mark.parametrize("gpus", [1, 8])
def test_full_training_of_7b(needs: Any, gpus: int) -> None:
    found = needs(f"trainer.n_gpus_per_node={gpus}", "actor_rollout_ref.actor.entropy_coeff=0.01")
    state = {"weights": 4 * P / gpus, "gradients": 4 * P / gpus, "optimiser": 8 * P / gpus}
    update = {
        "activations": 2 * TOKENS * (28 * 3584 + 8 * 3584 + 4 * 18944),
        "gathered layers": 2 * (2 * LAYER + ENDS),
        "logits": TOKENS * 152_064 * 6,
    }
    expected = state | ({"the optimiser's step": 4 * P} if gpus == 1 else update)
    training = found["each GPU of one"]
    expected = {**{f"{name} of one": size for name, size in expected.items()}, "contexts": 2 * GIB}
    assert {name: pytest.approx(size) for name, size in training.parts.items()} == expected
    assert (training.total <= 80 * GIB) == (gpus == 8)


def test_micro_batches_of_rows_have_one_full_row(needs: Any) -> None:
    rows = ("actor_rollout_ref.actor.use_dynamic_bsz=false", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32")
    assert needs(*rows, "trainer.n_gpus_per_node=8")["each GPU of one"].parts["logits of one"] == 2048 * 152_064 * 6


# GiB at the peak of an update of the self-test's model on one H200 (docs/gpu.md): batching, positions, without
# and with an entropy
PEAKS = [("packed", 4096, 4.84, 6.52), ("padded", 8192, 8.93, 33.27), ("fused", 4096, 4.84, 5.95)]
PEAKS += [("packed", 16384, 17.48, 17.53), ("padded", 32768, 27.13, 124.49), ("fused", 16384, 5.91, 6.49)]


@pytest.mark.parametrize(("batch", "positions", "plain", "with_entropy"), PEAKS)
def test_estimates_are_near_what_a_gpu_needed(batch: str, positions: int, plain: float, with_entropy: float) -> None:
    model = memory.Model(256_260_096, 0, 151_936 * 1024, layers=8, hidden=1024, mlp=3072, vocabulary=151_936)
    fsdp = {
        "model_dtype": "fp32",
        "offload_policy": False,
        "reshard_after_forward": True,
        "entropy_checkpointing": False,
    }
    for entropy, peak in enumerate((plain, with_entropy)):
        flags = {"use_remove_padding": batch != "padded", "use_fused_kernels": batch == "fused"}
        actor = {"calculate_entropy": bool(entropy), "entropy_coeff": 0.0}
        part = OmegaConf.create({"model": {"enable_gradient_checkpointing": True, **flags}, "actor": actor})
        estimated = sum(memory.training(model, part, OmegaConf.create(fsdp), 1, positions, True).values()) / GIB
        assert peak / 1.1 < estimated < 1.7 * peak


def test_policies_of_a_pool_are_in_each_others_way_unless_offloaded(needs: Any) -> None:
    pool = ("+marl.pools.all={gpus: 8}", "+marl.policies.one.pool=all", "+marl.policies.two.pool=all")
    parts = needs(*pool, "actor_rollout_ref.rollout.gpu_memory_utilization=0.4")["each GPU of all"].parts
    assert [size for part, size in parts.items() if part.startswith("weights")] == [4 * P / 8]


def test_servers_are_awake_beside_what_is_not_offloaded(needs: Any) -> None:
    """8 GPUs have two copies of the weights; a server has 2, and a share below its weights and a bucket."""
    size, actor = "actor_rollout_ref.rollout", "actor_rollout_ref.actor.fsdp_config"
    flags = ("trainer.n_gpus_per_node=8", f"{actor}.fsdp_size=4", f"{size}.tensor_model_parallel_size=2")
    parts = needs(*flags, f"{size}.gpu_memory_utilization=0.1")["each GPU of one, servers awake"].parts
    state = {"weights of one": P, "optimiser of one": 2 * P}
    assert parts == {**state, "contexts": GIB, "share of one's server": P + 2048 * 2**20}
    flags += (f"{actor}.param_offload=true", f"{actor}.optimizer_offload=true", f"{size}.gpu_memory_utilization=0.5")
    assert needs(*flags)["each GPU of one, servers awake"].parts == {"contexts": GIB, "share of one's server": 40 * GIB}


def test_one_process_has_one_copy_of_the_weights_and_no_servers(needs: Any) -> None:
    backend = ("marl.run.backend=local", "marl.policies.two.frozen=true")
    need = needs(*backend, model="smol/lm2")["the GPU"]
    assert need.room == 80 * GIB
    parameters = sizes(OmegaConf.create({"path": "smol/lm2", "lora_rank": 0})).parameters  # type: ignore[union-attr]
    state = {"weights of one": 4, "gradients of one": 4, "optimiser of one": 8, "weights of two": 2}
    assert {name: need.parts[name] / parameters for name in state} == state
    assert list(needs(*backend, model="smol/lm2", hardware="cpu")) == ["this process"]
    both = needs(*backend[:1], model="smol/lm2")["the GPU"]
    assert both.parts["optimiser of two"] == 8 * parameters
    assert sum(name.startswith("logits") for name in both.parts) == 1  # one policy at a time


def test_what_does_not_fit_is_refused() -> None:
    Need("each GPU of one", {"logits of one": 70 * GIB}, 80.0 * GIB).check()
    need = Need("each GPU of one", {"logits of one": 80 * GIB, "contexts": GIB}, 80.0 * GIB)
    message = r"81\.0 of 80 GiB \(logits of one 80\.0, contexts 1\.0\); does not fit: use more GPUs, lower"
    with pytest.raises(MarlError, match=message):
        need.check()


# Parameters are counted from a model's files; against transformers and peft


def test_a_damaged_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\x01" * 20)
    with pytest.raises(MarlError, match=r"the weights in '.*model.safetensors' cannot be read"):
        shapes(tmp_path)
    assert shapes(tmp_path / "nothing") == {}


@pytest.mark.slow
@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "down_proj"], "v_proj"])
def test_the_counts_are_those_of_the_model(targets: str | list[str], tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = {"vocab_size": 50, "hidden_size": 16, "head_dim": 8, "intermediate_size": 24, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    model = Qwen3ForCausalLM(Qwen3Config(**sizes, **heads, tie_word_embeddings=False))
    model.save_pretrained(tmp_path)
    tensors = shapes(tmp_path)
    assert parameters(tensors) == model.num_parameters()
    wanted = targets if isinstance(targets, list) or targets == "all-linear" else [targets]
    adapted = get_peft_model(model, LoraConfig(r=3, target_modules=wanted, task_type="CAUSAL_LM"))
    learnt, _ = adapted.get_nb_trainable_parameters()
    assert adapter_parameters(tensors, 3, targets) == learnt
