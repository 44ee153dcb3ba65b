"""Runs in the trainer's process: update one policy of two, and write fingerprints of both, in trainer and server."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file


def trained_weights(runtime: Any) -> str:
    """Hash of the weights that the training worker holds."""
    with tempfile.TemporaryDirectory() as folder:
        runtime.save(Path(folder), 0)
        tensors = load_file(next((Path(folder) / "huggingface").glob("*.safetensors")))
        digest = hashlib.sha256()
        for name in sorted(tensors):
            digest.update(tensors[name].tobytes())
        return digest.hexdigest()


def served_log_probs(runtime: Any, prompt_ids: list[int]) -> list[float]:
    """Greedy tokens' log-probs of a fixed prompt: they change with any change of the served weights."""
    sampling = {"temperature": 0.0, "logprobs": True, "max_tokens": 6, "ignore_eos": True}
    output = asyncio.run(runtime.client().generate("probe", prompt_ids=prompt_ids, sampling_params=sampling))
    return [round(value, 4) for value in output.log_probs]


def fingerprints(trainer: Any, prompt_ids: list[int]) -> dict[str, Any]:
    return {
        name: {"trainer": trained_weights(runtime), "server": served_log_probs(runtime, prompt_ids)}
        for name, runtime in trainer.policies.items()
    }


def update(trainer: Any, name: str, parts: dict[str, Any]) -> None:
    """One update of one policy, in trainer and server."""
    trainer._update_policy(trainer.policies[name], parts[name])
    trainer.policies[name].sync_weights(1)


def main(folder: Path) -> None:
    from marl_verl.trainer.run import session
    from marl_verl.trainer.team_trainer import _by_policy

    with session(folder) as (trainer, manager):
        trainer.agent_loop_manager = manager
        trainer.global_steps = 1
        batch = trainer.sample()
        trainer.put_advantages(batch)
        parts = _by_policy(batch)
        result: dict[str, Any] = {
            "rows": {name: sorted(part.keys) for name, part in parts.items()},
            "agents": {name: sorted({tag["agent"] for tag in part.tags}) for name, part in parts.items()},
        }
        prompt = [5, 6, 7, 8]
        result["before"] = fingerprints(trainer, prompt)
        update(trainer, "holder", parts)
        result["after_holder"] = fingerprints(trainer, prompt)
        update(trainer, "asker", parts)
        result["after_asker"] = fingerprints(trainer, prompt)
    (folder / "isolation.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
