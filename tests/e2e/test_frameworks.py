"""What a request of a framework may ask of vLLM's servers. MARL_VERL_LONG=1; `tests/local/` has the frameworks."""

import json
from pathlib import Path
from typing import Any

import pytest
from marl_verl_testing import real
from omegaconf import OmegaConf

from tests.e2e.conftest import long

pytestmark = [pytest.mark.e2e, long]

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "frameworks" / "openai_agents.yaml"


TEMPLATE = (  # renders no tools, but has the variable
    "{{ bos_token }}{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + eos_token + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}{# tools #}"
)


def test_formats_are_kept_by_the_servers(tmp_path: Path) -> None:
    """With models whose tokens can spell every JSON text, and that were never trained to write any."""
    recipe: Any = OmegaConf.load(RECIPE)
    recipe.marl.plugins = [str(Path(__file__).with_name("all_frameworks.py"))]
    recipe.marl.task = {"name": "mixed-digits", "train_size": 64, "test_size": 5}
    recipe.marl.workflow = {"name": "formats"}
    for policy in recipe.marl.policies.values():
        policy.tiny.family = "llama"
    recipe.data.max_response_length, recipe.actor_rollout_ref.rollout.max_model_len = 80, 240
    recipe.actor_rollout_ref.model.custom_chat_template = TEMPLATE
    recipe.trainer = {"total_training_steps": 1, "test_freq": -1, "save_freq": -1}
    OmegaConf.save(recipe, tmp_path / "recipe.yaml")
    run = real.train(tmp_path / "recipe.yaml", tmp_path / "run", variables={"FRAMEWORKS_FOLDER": str(RECIPE.parent)})
    assert run.code == 0, run.output
    assert [line["train/failed_episodes"] for line in run.lines("train/success")] == [0]
    lines = [json.loads(line) for file in (run.folder / "journals").glob("step_*.jsonl") for line in file.open()]
    demanded = 0
    for episode in (line for line in lines if "journal" in line):
        records = [record for record in episode["journal"]["records"] if record["effect"] == "act"]
        acts = {(record["agent"], record["slot"]): record["action"] for record in records}
        texts = [acts["first", slot]["text"] for slot in ("choice0", "choice1", "0")]
        assert all(json.loads(text)["digit"] in range(10) for text in texts)
        assert json.loads(episode["answer"]) == ["context_length_exceeded", texts[:2], texts[2]]
        (call,) = acts["second", "named"]["tool_calls"]
        assert json.loads(call["function"]["arguments"])["digit"] in range(10)
        action = acts["second", "0"]  # any number of calls, so that the limit of tokens may cut it
        if names := {call["function"]["name"] for call in action.get("tool_calls", ())}:
            assert names == {"largest"}
            demanded += 1
        else:
            assert action["stop_reason"] == "length"
            assert action["text"].startswith('[{"name": "largest", "parameters": {"digit": ')
    assert demanded
