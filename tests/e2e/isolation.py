"""Runs in processes of its own: one start of the real stack with every kind of policy, and what is seen in it.

python -m tests.e2e.isolation RECIPE FOLDER     prepares a run and starts the trainer
python -m tests.e2e.isolation FOLDER            is the trainer

In step 1 each policy is updated and then synced, one after the other, with fingerprints of all of them after each: of
the weights that training workers hold, and of what servers answer. The other steps are the trainer's own loop. Of every
step it is noted what training workers were given to learn from. Everything goes to FOLDER/seen.json, and then the run
waits to be killed.
"""

import asyncio
import hashlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

OBSERVATION = "digits 3 1 heard 4 1"
PATIENCE = 300.0  # seconds; longer than a killed command may need to take its run with it
NOTED = ("input_ids", "response_mask", "old_log_probs", "rollout_log_probs")


def _weights(worker: Any) -> dict[str, str]:
    """In the training worker: hashes of the weights of its policy, of the model and of its adapter."""
    (role,) = (part for name, part in worker.worker_dict.items() if name != "critic")
    digests: dict[str, Any] = {}
    for name, tensor in sorted(role.actor.engine.module.state_dict().items()):
        digest = digests.setdefault("adapter" if "lora_" in name else "base", hashlib.sha256())
        digest.update(tensor.full_tensor().cpu().numpy().tobytes())
    return {part: digest.hexdigest() for part, digest in digests.items()}


def served(runtime: Any, prompt_ids: list[int]) -> dict[str, Any]:
    """What the servers answer greedily, with log-probs: these change with any change of their weights."""
    sampling = {"temperature": 0.0, "logprobs": True, "max_tokens": 6, "ignore_eos": True}
    output = asyncio.run(runtime.client().generate("probe", prompt_ids=prompt_ids, sampling_params=sampling))
    return {"tokens": [int(token) for token in output.token_ids], "log_probs": list(output.log_probs)}


def fingerprints(trainer: Any, prompts: dict[str, list[int]]) -> dict[str, Any]:
    import ray

    trained = {
        runtime.name: runtime.workers.workers[0].__ray_call__.remote(_weights) for runtime in trainer.policies.trained
    }
    found = {name: {"server": served(runtime, prompts[name])} for name, runtime in trainer.policies.runtimes.items()}
    for name, weights in trained.items():
        found[name]["trainer"] = ray.get(weights)
    return found


def plainly(model: str, prompt_ids: list[int], tokens: list[int]) -> list[float]:
    """The log-probs of tokens behind a prompt in plain transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        log_probs = network(torch.tensor([prompt_ids + tokens])).logits[0].log_softmax(-1)
    places = range(len(prompt_ids) - 1, len(prompt_ids) + len(tokens) - 1)
    return [float(log_probs[place, token]) for place, token in zip(places, tokens, strict=True)]


def note_lessons(trainer: Any, lessons: list[dict[str, Any]]) -> None:
    """From here on, note every row that the training workers of any policy are given to learn from."""
    for runtime in trainer.policies.trained:
        runtime.workers.update_actor = partial(_noted, trainer, runtime.name, runtime.workers.update_actor, lessons)


def _noted(trainer: Any, policy: str, update: Callable[[Any], Any], lessons: list[dict[str, Any]], batch: Any) -> Any:
    import transfer_queue as tq

    fields = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(NOTED))
    columns = {name: [row.tolist() for row in fields[name].unbind()] for name in NOTED}
    for number, (key, tag) in enumerate(zip(batch.keys, batch.tags, strict=True)):
        row = {name: column[number] for name, column in columns.items()}
        where = {"step": trainer.step, "policy": policy, "key": key, "padding": bool(tag.get("is_padding"))}
        lessons.append({**where, **row})
    return update(batch)


def one_after_the_other(trainer: Any, prompts: dict[str, list[int]]) -> dict[str, Any]:
    """Step 1, a policy at a time: what changed where, after what."""
    from marl_verl.backend.learning.batches import put_advantages

    trainer.step = 1
    rows, table, _ = trainer.schedule.sample()
    table = replace(table, values=trainer.policies.values(rows))
    put_advantages(trainer.store, rows, trainer.advantages(table)[1], trainer.policies.learning)
    seen, used = {"start": fingerprints(trainer, prompts)}, dict[str, None]()
    for runtime in trainer.policies.trained:
        used |= dict.fromkeys(trainer.policies.update(rows, rows.by_policy()[runtime.name], None)[1])
        seen[f"{runtime.name} updated"] = fingerprints(trainer, prompts)
        runtime.sync(1)
        seen[f"{runtime.name} synced"] = fingerprints(trainer, prompts)
    trainer.store.remove(list(used))
    return seen


def note_queue(trainer: Any, file: Path) -> None:
    """From here on, note what TransferQueue holds at the end of a step, before the rows of that step leave it."""
    import transfer_queue as tq

    commit = trainer.checkpoints.commit

    def noted(step: int) -> None:
        commit(step)
        held = {partition: sorted({key.partition("t")[0] for key in keys}) for partition, keys in tq.kv_list().items()}
        with file.open("a") as lines:
            lines.write(json.dumps([step, held]) + "\n")

    trainer.checkpoints.commit = noted


def train(folder: Path) -> None:
    import ray
    from transformers import AutoTokenizer

    from marl_verl.trainer.run import session, write_summary

    lessons: list[dict[str, Any]] = []
    with session(folder) as trainer:
        models = {name: each.section.actor_rollout_ref.model.path for name, each in trainer.policies.runtimes.items()}
        conversation = [{"role": "user", "content": OBSERVATION}]
        prompts = {
            name: AutoTokenizer.from_pretrained(model).apply_chat_template(
                conversation, add_generation_prompt=True, return_dict=False
            )
            for name, model in models.items()
        }
        note_lessons(trainer, lessons)
        note_queue(trainer, folder / "queue.jsonl")
        stages = one_after_the_other(trainer, prompts)
        trainer.fit()
        write_summary(trainer)
        stages["end"] = fingerprints(trainer, prompts)
        seen = {
            "models": models,
            "stages": stages,
            "plain": {
                name: plainly(models[name], prompts[name], stages["start"][name]["server"]["tokens"]) for name in models
            },
            "lessons": lessons,
            "slots": ray.cluster_resources()["GPU"],
        }
        new = folder / ".seen.json"
        new.write_text(json.dumps(seen))
        new.replace(folder / "seen.json")
        time.sleep(PATIENCE)


def main(recipe: Path, folder: Path) -> int:
    from marl_verl.cli.main import reported
    from marl_verl.config.hardware import on_gpu
    from marl_verl.run.describe import describe
    from marl_verl.run.prepare import make_run_directory, plan_run
    from marl_verl.run.progress import Display
    from marl_verl.run.supervisor import TrainerProcess

    display = Display()
    plan = plan_run(recipe, [f"marl.run.dir={folder.parent}", f"marl.run.name={folder.name}"])
    display.print(describe(plan))
    made = make_run_directory(plan, display)
    process = TrainerProcess(made, list(plan.team.policies), module="tests.e2e.isolation", gpu=on_gpu(plan.resolved))
    return reported(lambda: process.run(display) or 0)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        from marl_verl.trainer.run import main as run_trainer

        sys.exit(run_trainer(Path(sys.argv[1]), train))
    else:
        sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
