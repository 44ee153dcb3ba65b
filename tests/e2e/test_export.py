"""A policy and an adapter of the topology tests' run, exported: the log-probs of training, in transformers and vLLM.

The actions in the journal of step 4 were sampled by the servers with the weights of checkpoint 3, and the journal has
the log-probs that they were sampled with.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from marl_verl.run.supervisor import _variables
from tests.e2e.conftest import WithPlugin
from tests.five import TEMPLATE
from tests.served import Acts, acts_of, gaps, log_probs
from tests.weights import change

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("five", "searching")]

TOLERANCE = 1e-4  # nats a token, float32 on both sides
AGENT = {"model": "left", "adapter": "tuned"}  # kind of export -> an agent that acts with it
POLICY = {"left": "full", "tuned": "lora"}
VLLM = """
import json, sys
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

if __name__ == "__main__":
    model, adapter, prompt = json.loads(sys.argv[1])
    llm = LLM(model, dtype="float32", enforce_eager=True, max_model_len=40, enable_lora=True, max_lora_rank=8,
              distributed_executor_backend="uni")
    options = SamplingParams(temperature=0.0, max_tokens=2, logprobs=1, detokenize=False)
    lora = LoRARequest("adapter", 1, adapter)
    done = llm.generate([{"prompt_token_ids": prompt}], options, lora_request=lora)[0].outputs[0]
    log_probs = [values[token].logprob for token, values in zip(done.token_ids, done.logprobs)]
    print("ANSWER", json.dumps({"tokens": list(done.token_ids), "log_probs": log_probs}))
"""


def _export(run: WithPlugin, output: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "marl_verl.cli.main", "export", str(run.folder), "--output", str(output)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def exported(five: WithPlugin, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Kind of export -> its folder, of checkpoint 3, of which the servers had the weights in step 4."""
    folder = tmp_path_factory.mktemp("exported")
    words = {kind: ("--policy", POLICY[agent], "--step", "3") for kind, agent in AGENT.items()}
    with ThreadPoolExecutor() as pool:
        printed = [*pool.map(lambda kind: _export(five, folder / kind, *words[kind]), AGENT)]
    assert all("of step 3 as" in text and kind in text for kind, text in zip(AGENT, printed, strict=True))
    return {path.name: path for path in folder.iterdir()}


def _sampled(run: WithPlugin, agent: str) -> Acts:
    acts = acts_of(run, 4, agent)
    assert len(acts) >= 24  # three sessions of eight tasks
    return acts


def _initial(run: WithPlugin, agent: str) -> str:
    """The model before training, which is an adapter's base."""
    from omegaconf import OmegaConf

    config: Any = OmegaConf.load(run.folder / "config.yaml")
    return str(config.policies[POLICY[agent]].actor_rollout_ref.model.path)


@pytest.mark.parametrize("kind", AGENT)
def test_transformers_gives_the_log_probs_of_training(five: WithPlugin, exported: dict[str, Path], kind: str) -> None:
    from transformers import AutoTokenizer

    template = AutoTokenizer.from_pretrained(exported[kind]).chat_template
    assert template
    assert (template == TEMPLATE) == (POLICY[AGENT[kind]] == "full")  # its custom_chat_template
    acts = _sampled(five, AGENT[kind])
    assert gaps(exported[kind], acts).max() < TOLERANCE
    assert gaps(_initial(five, AGENT[kind]), acts).max() > 10 * TOLERANCE  # the weights before training would fail


def test_vllm_goes_on_as_transformers_does(five: WithPlugin, exported: dict[str, Path], tmp_path: Path) -> None:
    """With the adapter, at the observation of a stored turn."""
    from transformers import AutoModelForCausalLM

    prompt = _sampled(five, "tuned")[0][0]
    script = tmp_path / "ask_vllm.py"
    script.write_text(VLLM)
    variables = {"VLLM_CPU_KVCACHE_SPACE": "1", "MARL_VERL_RUN": "test", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(script), json.dumps([_initial(five, "tuned"), str(exported["adapter"]), prompt])],
        env={**os.environ, **_variables(gpu=False), **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout.partition("ANSWER ")[2])
    expected = log_probs(AutoModelForCausalLM.from_pretrained(exported["adapter"]), prompt, answer["tokens"])
    assert answer["log_probs"] == pytest.approx(expected.tolist(), abs=TOLERANCE)


def test_the_adapter_is_an_adapter_and_moved(five: WithPlugin, exported: dict[str, Path]) -> None:
    names = {path.name for path in exported["adapter"].iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "chat_template.jinja"} <= names
    assert "config.json" not in names
    assert 1e-4 < change(five.folder, "lora") < 1
    saved = five.folder / "checkpoints" / "step_6" / "policies" / "lora"
    assert saved.is_dir()
    assert not list(saved.glob("huggingface/*.safetensors"))
