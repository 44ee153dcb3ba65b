"""A policy and an adapter, trained for two steps and exported: the log-probs of training, in transformers and vLLM.

The actions in the journal of step 2 were sampled by the servers with the weights of checkpoint 1, and the journal has
the log-probs that they were sampled with.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from marl_verl.process.supervisor import _environment
from tests.e2e.conftest import Finished, train

pytestmark = pytest.mark.e2e

TOLERANCE = 1e-4  # nats a token, float32 on both sides
VLLM = """
import json, sys
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

if __name__ == "__main__":
    model, adapter, prompt = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    llm = LLM(model, dtype="float32", enforce_eager=True, max_model_len=64, enable_lora=bool(adapter), max_lora_rank=8,
              distributed_executor_backend="uni")
    lora = LoRARequest("adapter", 1, adapter) if adapter else None
    wanted = SamplingParams(temperature=0.0, max_tokens=2, logprobs=1, detokenize=False)
    done = llm.generate([{"prompt_token_ids": prompt}], wanted, lora_request=lora)[0].outputs[0]
    found = [values[token].logprob for token, values in zip(done.token_ids, done.logprobs)]
    print("FOUND", json.dumps({"tokens": list(done.token_ids), "log_probs": found}))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Two steps of the inventory task: the holder trains all of its weights, the asker an adapter."""
    done = train(
        tmp_path_factory.mktemp("runs") / "export",
        *("trainer.total_training_steps=2", "trainer.save_freq=1", "trainer.test_freq=2", "marl.task.test_size=16"),
        *("marl.policies.asker.model.lora_rank=4", "marl.policies.asker.model.lora_alpha=8"),
        *("marl.run.journal_tokens=true", "actor_rollout_ref.actor.optim.lr_warmup_steps=0"),
    )
    assert done.code == 0, done.output
    return done


def _export(run: Finished, output: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "marl_verl.cli.main", "export", str(run.folder), "--output", str(output), "--json"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def exported(run: Finished, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoint 1, of which the servers had the weights in step 2."""
    folder = tmp_path_factory.mktemp("exported")
    for name, policy, more in (
        ("holder", "holder", []),
        ("adapter", "asker", []),
        ("merged", "asker", ["--merge"]),
    ):
        printed = _export(run, folder / name, "--policy", policy, "--step", "1", *more)
        assert printed["step"] == 1
        assert printed["dtype"] == "float32"
        assert printed["kind"] == {"holder": "model"}.get(name, name)
    return {path.name: path for path in folder.iterdir()}


def _sampled(run: Finished, agent: str) -> list[tuple[list[int], list[int], list[float]]]:
    """(observation, action, log-probs) of the agent's acts in step 2."""
    found = []
    for line in (run.folder / "journals" / "step_00002.jsonl").read_text().splitlines():
        for record in json.loads(line).get("journal", {}).get("records", []):
            if record.get("agent") == agent:
                action = record["action"]
                found.append((action["prompt_ids"], action["response_ids"], action["log_probs"]))
    assert len(found) > 100
    return found


@pytest.mark.parametrize(("name", "agent"), [("holder", "holder"), ("adapter", "asker"), ("merged", "asker")])
def test_transformers_gives_the_log_probs_of_training(
    run: Finished, exported: dict[str, Path], name: str, agent: str
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(exported[name])
    assert AutoTokenizer.from_pretrained(exported[name]).chat_template
    before = AutoModelForCausalLM.from_pretrained(str(_config(run).policies[agent].actor_rollout_ref.model.path))
    worst = moved = 0.0
    for prompt, action, sampled in _sampled(run, agent):
        both = torch.tensor([[*prompt, *action]])
        with torch.no_grad():
            found, old = (
                torch.log_softmax(each(both).logits[0, len(prompt) - 1 : -1].float(), dim=-1)
                for each in (model, before)
            )
        chosen = torch.tensor(action)[:, None]
        worst = max(worst, float((found.gather(1, chosen)[:, 0] - torch.tensor(sampled)).abs().max()))
        moved = max(moved, float((old.gather(1, chosen)[:, 0] - torch.tensor(sampled)).abs().max()))
    assert worst < TOLERANCE
    assert moved > 10 * TOLERANCE  # an export of the weights before training would fail


def _config(run: Finished) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.load(run.folder / "config.yaml")


@pytest.mark.parametrize("name", ["holder", "adapter", "merged"])
def test_vllm_loads_it(run: Finished, exported: dict[str, Path], name: str) -> None:
    """And goes on as transformers does, from the observation of a stored turn."""
    import torch
    from transformers import AutoModelForCausalLM

    folder, agent = exported[name], "holder" if name == "holder" else "asker"
    base = str(_config(run).policies[agent].actor_rollout_ref.model.path)
    prompt = _sampled(run, agent)[0][0]
    model, adapter = (base, str(folder)) if name == "adapter" else (str(folder), "")
    script = folder.parent / "ask_vllm.py"
    script.write_text(VLLM)
    done = subprocess.run(
        [sys.executable, str(script), model, adapter, json.dumps(prompt)],
        env={**os.environ, **_environment(), "MARL_VERL_RUN": "test", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.partition("FOUND ")[2])
    logits = AutoModelForCausalLM.from_pretrained(folder)(torch.tensor([[*prompt, *found["tokens"]]])).logits
    expected = torch.log_softmax(logits[0, len(prompt) - 1 : -1].float(), dim=-1)
    expected = expected.gather(1, torch.tensor(found["tokens"])[:, None])[:, 0]
    assert found["log_probs"] == pytest.approx(expected.tolist(), abs=TOLERANCE)


def test_the_adapter_is_an_adapter_and_moved(run: Finished, exported: dict[str, Path]) -> None:
    names = {path.name for path in exported["adapter"].iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "chat_template.jinja"} <= names
    assert "config.json" not in names
    assert 1e-4 < run.summary["policies"]["asker"]["weight_change"] < 1
    saved = run.folder / "checkpoints" / "step_2" / "policies" / "asker"
    assert not list(saved.glob("huggingface/*.safetensors"))
