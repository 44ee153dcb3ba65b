"""The actor's forward and backward pass: `python -m marl_verl_diagnose.selftest.log_probs FOLDER`; log-probs.json.

verl's worker in this process, without Ray or servers. The log-probs of rows, of unequal lengths and with prompts that
begin alike, must not depend on batching (packed, padded, shared prefixes), fused kernels or a computed entropy.
"""

import copy
import gc
import json
import math
import os
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

from marl_verl_tiny.inventory import Inventory
from marl_verl_tiny.model import Shape

from marl_verl.config.hardware import RUN_VARIABLE, has_accelerator
from marl_verl_diagnose.memory import sizes, training

TOKENS = {True: (4096, 16384), False: (256, 512)}  # whether on a GPU -> tokens of the micro-batches
SHARES = (2, 4, 8, 8)  # a row's length is tokens / share
BATCHES = {False: ("packed", "padded", "shared"), True: ("fused",)}  # whether with fused kernels -> ways of batching
LARGE = Shape(hidden=1024, layers=8, heads=16, kv_heads=8, head_dim=64, mlp=3072, context=32768)  # 0.24 B parameters
SMALL = Shape(context=1024)
VOCABULARY = {True: 151_936, False: 4_096}  # whether on a GPU -> number of tokens
DEVIATION = 1.0  # of the logits: a log-prob of a wrong position differs by about 1, rounding to bf16 by about 0.01
GIB = 2**30
RECIPE = """
defaults: [marl_trainer, _self_]
marl:
  task: {{name: inventory}}
  workflow: {{name: inventory}}
  agents: {{holder: {{policy: one}}, asker: {{policy: one}}}}
  policies: {{one: {{model: {{path: {model}, use_remove_padding: true, use_fused_kernels: {fused}}}}}}}
actor_rollout_ref:
  actor: {{ppo_max_token_len_per_gpu: {tokens}}}
  rollout: {{log_prob_max_token_len_per_gpu: {tokens}}}
"""


def measure(folder: Path, gpu: bool) -> list[dict[str, Any]]:
    """The figures of a pass for each way of batching, number of tokens, and with and without the entropy."""
    os.environ.setdefault(RUN_VARIABLE, "selftest")  # verl on the CPU platform where there is no GPU
    if not gpu:  # compiling takes longer than it saves
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    import torch

    from marl_verl.backend.learning.prefixes import SHARE
    from marl_verl.backend.learning.workers import PolicyWorker

    model, table = random_model(folder, gpu), list[dict[str, Any]]()
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    references = {tokens: _reference(model, _rows(tokens), gpu) for tokens in TOKENS[gpu]}
    memory = torch.cuda.get_device_properties(0).total_memory / GIB if gpu else math.inf
    for fused in (False, True):
        settings = _settings(model, fused, gpu)
        worker: Any = PolicyWorker(config=settings, role="actor")
        worker.init_model()
        for (tokens, reference), batch, entropy in product(references.items(), BATCHES[fused], (False, True)):
            print(f"{tokens} tokens, {batch}, entropy {entropy} ...", flush=True)
            options = {"use_remove_padding": batch != "padded", "use_fused_kernels": fused}
            options |= {"calculate_entropy": entropy, SHARE: batch == "shared"}
            positions = len(SHARES) * tokens // min(SHARES) if batch == "padded" else tokens
            needed = _estimate(settings, positions, options, gpu)
            row: dict[str, Any] = {"batch": batch, "tokens": tokens, "entropy": entropy, "branches": worker.masks()}
            row["estimate GiB"] = needed
            if needed > memory:
                row["skipped"] = f"about {needed:.0f} GiB are needed, and the GPU has {memory:.0f}"
            else:
                row |= _measured(worker, tokens, reference, options, gpu)
            table.append(row)
        del worker
        gc.collect()
        torch.cuda.empty_cache()
    return table


def random_model(work: Path, gpu: bool) -> str:
    """The folder of a random Qwen3, made on the first call: words of the inventory task, and fillers."""
    import torch
    from marl_verl_tiny.factory import make_model, make_tokenizer

    folder, shape = work / "models" / "random", LARGE if gpu else SMALL
    if not folder.exists():
        known = Inventory().vocabulary()
        fillers = VOCABULARY[gpu] - len(make_tokenizer(known))
        tokenizer = make_tokenizer([*known, *(f"w{number}" for number in range(fillers))], shape.context)
        model = make_model(shape, tokenizer, seed=0)
        with torch.no_grad():
            model.get_input_embeddings().weight.mul_(DEVIATION / (0.02 * shape.hidden**0.5))
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return str(folder)


def _rows(tokens: int) -> list[Any]:
    """Token ids of rows of unequal lengths, `tokens` together: prompts that begin alike, and responses as long."""
    import torch

    draw = torch.Generator().manual_seed(tokens)
    rows = [torch.randint(8, 4096, (tokens // share,), generator=draw) for share in SHARES]
    return [torch.cat([rows[0][: len(row) // 2], row[len(row) // 2 :]]) for row in rows]


def _reference(model: str, rows: list[Any], gpu: bool) -> Any:
    """Log-probs of the responses, one row at a time through transformers in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    device = "cuda" if gpu else "cpu"
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa").to(device)
    log_probs = []
    with torch.no_grad():
        for row in rows:
            prompt = len(row) // 2
            hidden = network.model(input_ids=row[None].to(device)).last_hidden_state[0, prompt - 1 : -1]
            pairs = zip(hidden.split(1024), row[prompt:].to(device).split(1024), strict=True)  # all logits may not fit
            for states, labels in pairs:
                log_probs.append(network.lm_head(states).log_softmax(-1).gather(-1, labels[:, None])[:, 0].cpu())
    return torch.cat(log_probs)


def _settings(model: str, fused: bool, gpu: bool) -> Any:
    from omegaconf import OmegaConf

    from marl_verl.config.compose import compose
    from marl_verl.config.resolve import resolve
    from marl_verl.team import read_team

    recipe = Path(model).with_name(f"fused-{fused}.yaml")
    recipe.write_text(RECIPE.format(model=model, fused=str(fused).lower(), tokens=max(TOKENS[gpu])))
    config = compose(recipe, [])
    marl: Any = OmegaConf.to_container(config.marl, resolve=True)
    settings = resolve(config, read_team(marl)).policies.one.actor_rollout_ref
    settings.actor.optim.lr = 0.0  # the weights stay the same; a recipe must train
    return settings


def _estimate(settings: Any, positions: int, options: dict[str, bool], gpu: bool) -> float:
    """The memory in GiB that a dry run estimates for an update of one micro-batch."""
    part = copy.deepcopy(settings)
    part.model.use_remove_padding = options["use_remove_padding"]
    part.actor.calculate_entropy = options["calculate_entropy"]
    model = sizes(part.model)
    assert model is not None  # the model is ours
    return sum(training(model, part, part.actor.fsdp_config, 1, positions, gpu).values()) / GIB


def _measured(worker: Any, tokens: int, expected: Any, options: dict[str, Any], gpu: bool) -> dict[str, float]:
    """A forward pass, compared with the reference, and an update: differences, gradient, seconds, peak memory."""
    import torch
    from verl.workers.utils.padding import response_from_nested

    from marl_verl.backend.rollout.rows import MODEL_FIELDS, UPDATE_FIELDS

    rows = _rows(tokens)
    computed = worker.compute_log_prob(_batch(rows, MODEL_FIELDS, {**options, "compute_loss": False}))
    mask = _batch(rows, ("response_mask",), {})["response_mask"]
    values = response_from_nested(computed["log_probs"].cpu().float(), mask).values()
    difference = (values - expected).abs()
    update = {"mini_batch_size": len(rows), "global_batch_size": len(rows), "epochs": 1, "seed": 0}
    if gpu:
        torch.cuda.reset_peak_memory_stats()
    begun = time.monotonic()
    old = values.split([len(row) // 2 for row in rows])
    output = worker.update_actor(_batch(rows, UPDATE_FIELDS, {**options, **update}, old))
    seconds = time.monotonic() - begun
    (gradient,) = output["metrics"]["grad_norm"]
    differences = {"mean": float(difference.mean()), "largest": float(difference.max())}
    peak = torch.cuda.max_memory_allocated() / GIB if gpu else 0.0
    return {**differences, "grad norm": float(gradient), "seconds": seconds, "peak GiB": peak}


def _batch(rows: list[Any], names: tuple[str, ...], settings: dict[str, Any], old: Any = ()) -> Any:
    """Rows as a worker gets them; `old` are their log-probs before the update."""
    import torch
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu

    from marl_verl.backend.learning.batches import jagged
    from marl_verl.backend.rollout.rows import row_fields
    from marl_verl.episode import Act, Action, Turn

    fields = list[dict[str, Any]]()
    for number, row in enumerate(rows):
        prompt, response = row.split([len(row) // 2, len(row) - len(row) // 2])
        sampled = (old[number] if len(old) else torch.zeros(len(response))).tolist()
        action = Action("", prompt.tolist(), response.tolist(), sampled)
        turn = Turn(Act("holder", "0", 0, 0, ()), action, "u", number, "one")
        fields.append({**row_fields(turn), "advantages": torch.linspace(-1, 1, len(response))})
    data = TensorDict({name: jagged([row[name] for row in fields]) for name in names}, batch_size=len(rows))
    everywhere = {"temperature": 1.0, "distillation_use_topk": False, "distillation_only": False}
    for name, value in {**everywhere, **settings}.items():
        tu.assign_non_tensor_data(data, name, value)
    return data


if __name__ == "__main__":
    passes = measure(Path(sys.argv[1]), has_accelerator())
    Path(sys.argv[1], "log-probs.json").write_text(json.dumps(passes, default=float), encoding="utf-8")
