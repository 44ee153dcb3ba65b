"""The servers' module; what the servers of a run sampled, and how far a model's log-probs are from theirs."""

import importlib
import importlib.metadata
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from marl_verl_testing.real import Finished

Acts = list[tuple[list[int], list[int], list[float]]]
"""(prompt, response, log-probs of the response) of each act."""


@pytest.fixture(scope="module")
def servers() -> Iterator[Any]:
    """The module, during whose import verl must find vLLM on a CPU."""
    pytest.importorskip("vllm")
    from marl_verl.backend.verl.platforms import vllm_plugin as workarounds

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.metadata, "version", importlib.metadata.version)
        workarounds.alias_vllm_version()
        yield importlib.import_module("marl_verl.backend.verl.vllm_servers")


def turns(run: Finished, step: int) -> list[tuple[str, dict[str, Any]]]:
    """(row key, record) of the turns in a step's journal."""
    _, *lines = (run.folder / "journals" / f"step_{step:05d}.jsonl").read_text().splitlines()
    return [turn for line in lines for turn in turns_of(json.loads(line))]


def turns_of(episode: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """(row key, record) of an episode's turns; a failure has none."""
    records = [record for record in episode.get("journal", {}).get("records", []) if "row" in record]
    return [(f"{episode['uid']}_{record['row']['session']}_{record['row']['index']}", record) for record in records]


def acts_of(run: Finished, step: int, agent: str) -> Acts:
    """The acts of an agent in a step."""
    actions = [record["action"] for _, record in turns(run, step) if record["agent"] == agent]
    return [(action["prompt_ids"], action["response_ids"], action["log_probs"]) for action in actions]


def log_probs(model: torch.nn.Module, prompt: Sequence[int], response: Sequence[int]) -> torch.Tensor:
    """Of the response's tokens, [n], in float32."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1].float()
    return logits.log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0]


def gaps(folder: Path | str, acts: Acts) -> torch.Tensor:
    """|log-prob of the model in a folder - that of the server| of all tokens, in nats."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    return torch.cat([(log_probs(model, prompt, ids) - torch.tensor(served)).abs() for prompt, ids, served in acts])


def answers(folder: Path, acts: list[dict[str, Any]]) -> list[str]:
    """What a model says greedily to the observations of acts."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    texts, options = [], {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
    for act in acts:
        ids = tokenizer.apply_chat_template(act["observation"], **options)
        with torch.no_grad():
            sampled = model.generate(**ids, max_new_tokens=8, do_sample=False)[0, ids["input_ids"].shape[1] :]
        texts.append(tokenizer.decode(sampled, skip_special_tokens=True))
    return texts
