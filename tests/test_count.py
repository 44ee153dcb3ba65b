"""Parameters are counted from a model's files; against transformers and peft."""

from pathlib import Path

import pytest

from marl_verl.errors import MarlError
from marl_verl.models.count import adapter_parameters, parameters, shapes


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
    found = shapes(tmp_path)
    assert parameters(found) == model.num_parameters()
    wanted = targets if isinstance(targets, list) or targets == "all-linear" else [targets]
    adapted = get_peft_model(model, LoraConfig(r=3, target_modules=wanted, task_type="CAUSAL_LM"))
    learnt, _ = adapted.get_nb_trainable_parameters()
    assert adapter_parameters(found, 3, targets) == learnt
