"""Checks of whole runs: training, resume, LoRA, a critic, asynchronous training, export and evaluation."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from marl_verl.api import Run, evaluate, load_run, train
from marl_verl.run.progress import Display, Event
from marl_verl_diagnose.selftest import CriterionError, Figures, Place, require

STEPS, TASKS = 4, 20  # steps of the first run, and held-out tasks
DIFFERENCE = 0.02  # between log-probs of sampling and of training, in nats per token
SPREAD = 256  # MiB by which the memory in use while the servers sleep may change
# on a GPU a larger model; both are trained on demonstrations for some seconds, on a CPU
TINY = {"agents": ["holder", "asker"], "steps": 100, "good": 0.3}
TINY_GPU = {**TINY, "steps": 40, "hidden": 256, "layers": 4, "heads": 4, "head_dim": 64, "mlp": 512}


def recipe(place: Place, policies: Mapping[str, Any], pool: bool = True) -> dict[str, Any]:
    """A recipe of the inventory task; `policies`: name -> its settings, for the agents of that name or for both."""
    tiny = TINY_GPU if place.gpu else TINY
    own = {"pool": "all"} if pool else {}
    # a loss with importance weights: its metrics compare sampled and recomputed log-probs
    settings = {name: {"tiny": tiny, "loss": "ppo-clip-tis", **own, **each} for name, each in policies.items()}
    settings = {name: {k: v for k, v in each.items() if v is not None} for name, each in settings.items()}
    agents = {name: {"policy": name if name in policies else next(iter(policies))} for name in ("holder", "asker")}
    return {
        "marl": {
            "task": {"name": "inventory", "train_size": 512, "test_size": TASKS},
            "workflow": {"name": "inventory"},
            "agents": agents,
            "policies": settings,
            "pools": {"all": {"gpus": place.gpus}} if pool else {},
        },
        "data": {"train_batch_size": 8, "max_prompt_length": 48, "max_response_length": 8},
        "actor_rollout_ref": {
            "actor": {"ppo_mini_batch_size": 8, "optim": {"lr": 1e-3}},
            "rollout": {"max_model_len": 64, "gpu_memory_utilization": 0.3},
        },
        "trainer": {
            "n_gpus_per_node": place.gpus,
            "total_training_steps": STEPS,
            "save_freq": STEPS,
            "test_freq": STEPS,
            "val_before_train": False,
        },
    }


def trained(place: Place, name: str, content: dict[str, Any], overrides: Mapping[str, Any], **how: Any) -> Run:
    """The run of that name, which another check may have trained already."""
    folder = place.work / "runs" / name
    if not folder.exists():
        where = {"marl.run.dir": str(folder.parent), "marl.run.name": name}
        return train(content, {**overrides, **where}, **how)
    if not (folder / "summary.json").is_file():
        raise CriterionError(f"run '{name}' has failed in an earlier check")
    return load_run(folder)


def learnt(run: Run, steps: Sequence[int], policies: Sequence[str], figures: Figures) -> list[dict[str, float]]:
    """Check that these steps were trained and that each policy has gradients. Returns their metrics."""
    lines = [line for line in run.metrics if "train/success" in line and line["step"] in steps]
    done = [int(line["step"]) for line in lines]
    require(done == list(steps), f"steps {done} were trained, not {list(steps)}")
    figures["seconds per step"] = [line["seconds/step"] for line in lines]
    figures["tokens per second"] = sum(line["train/tokens"] for line in lines) / sum(figures["seconds per step"])
    for name in policies:
        norms = [line[f"policy/{name}/grad_norm"] for line in lines if f"policy/{name}/grad_norm" in line]
        finite = bool(norms) and all(map(math.isfinite, norms))
        require(finite and max(norms) > 0, f"gradient norms of policy '{name}': {norms}")
        memory = [line.get(f"policy/{name}/perf/max_memory_allocated_gb", 0.0) for line in lines]
        figures[f"{name}: peak memory of training, GiB"] = max(memory)
    return lines


def agreed(lines: Sequence[Mapping[str, float]], policies: Sequence[str], figures: Figures) -> None:
    """Check sampled against recomputed log-probs: mean over rows of the difference per token."""
    for name in policies:
        apart = [line[f"policy/{name}/rollout_corr/log_ppl_abs_diff"] for line in lines]
        figures[f"{name}: sampled against recomputed log-probs"] = apart
        require(max(apart) < DIFFERENCE, f"log-probs of policy '{name}' differ by {max(apart):.3g} nats per token")


def _colocated(place: Place, figures: Figures) -> Run:
    samples: list[tuple[float, int]] = []
    ends: list[float] = []
    plain = Display()

    def event(found: Event) -> None:
        if found["event"] == "step":
            ends.append(time.time())
        plain.event(found)

    with gpu_memory(samples):
        content = recipe(place, {"holder": {}, "asker": {}})
        run = trained(place, "colocated", content, {}, progress=Display(callback=event))
    if samples and ends:
        figures["MiB in use while the servers sleep"] = asleep(samples, ends)
    return run


def colocated(place: Place, figures: Figures) -> None:
    run = _colocated(place, figures)
    lines = learnt(run, range(1, STEPS + 1), ("holder", "asker"), figures)
    figures["seconds to the first step"] = run.summary["seconds_to_first_step"] if run.summary else None
    agreed(lines, ("holder", "asker"), figures)
    used = figures.get("MiB in use while the servers sleep")
    require(used is not None or not place.gpu, "nvidia-smi did not report the memory in use")
    if used:
        require(max(used) - min(used) <= SPREAD, f"while the servers sleep, {used} MiB are in use: not constant")


def resumed(place: Place, figures: Figures) -> None:
    run = _colocated(place, figures)
    last = max(run.checkpoints)
    run = train(resume=run, overrides={"trainer.total_training_steps": last + 1})
    agreed(learnt(run, [last + 1], ("holder", "asker"), figures), ("holder", "asker"), figures)


def _adapter(place: Place) -> Run:
    """LoRA beside a frozen policy on one pool, with the critic of MAPPO."""
    adapter = {"model": {"lora_rank": 8, "lora_alpha": 16}, "actor": {"optim": {"lr": 1e-2}}}
    content = recipe(place, {"holder": adapter, "asker": {"frozen": True, "loss": None}})
    content["marl"]["algorithm"] = {"name": "mappo"}
    content["marl"]["critic"] = {"tiny": {**(TINY_GPU if place.gpu else TINY), "steps": 20}}
    content["actor_rollout_ref"]["rollout"]["enforce_eager"] = True  # a faster start
    return trained(place, "adapter", content, {"trainer.total_training_steps": 3})


def lora(place: Place, figures: Figures) -> None:
    lines = learnt(_adapter(place), (1, 2, 3), ("holder",), figures)
    agreed(lines, ("holder",), figures)
    trained_too = [name for name in lines[-1] if name.startswith("policy/asker/")]
    require(not trained_too, f"the frozen policy has metrics of training: {trained_too}")


def mappo(place: Place, figures: Figures) -> None:
    lines = learnt(_adapter(place), (1, 2, 3), ("holder",), figures)
    for name in ("vf_loss", "grad_norm", "explained_variance"):
        values = [line[f"critic/team/{name}"] for line in lines]
        figures[f"critic: {name}"] = values
        require(all(map(math.isfinite, values)), f"critic: {name} is {values}")
    require(max(figures["critic: grad_norm"]) > 0, "the critic has no gradient")


def asynchronous(place: Place, figures: Figures) -> None:
    content = recipe(place, {"both": {}}, pool=False)
    content["marl"]["schedule"] = {"mode": "async", "fill": 32 * place.gpus, "batch": 16 * place.gpus}
    content["actor_rollout_ref"]["rollout"]["enforce_eager"] = True
    run = trained(place, "async", content, {})
    lines = learnt(run, range(1, STEPS + 1), ("both",), figures)
    for name in ("updates", "trained_rows", "stale_dropped"):
        figures[name] = sum(line[f"policy/both/{name}"] for line in lines)
    require(figures["updates"] > 1, f"{figures['updates']:.0f} updates in {STEPS} steps")


def exported(place: Place, figures: Figures) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from marl_verl.run.checkpoint.export import choose, export

    run = _colocated(place, figures)
    output = place.work / "exported"
    figures["parameters"] = export(choose(run.folder, "asker", STEPS), output).parameters
    source = run.config.policies.asker.actor_rollout_ref.model.path
    after, before = (dict(AutoModelForCausalLM.from_pretrained(path).named_parameters()) for path in (output, source))
    with torch.no_grad():
        change = max(float((after[name].float() - before[name].float()).abs().max()) for name in before)
    figures["largest change of a weight"] = change
    require(set(after) == set(before) and 0 < change < 1, f"the largest change of a weight is {change}")
    validated = next(m for m in run.metrics if m["step"] == STEPS and "validation/success" in m)["validation/success"]
    evaluated = evaluate(run, step=STEPS, greedy_only=True).success
    figures["success, run's validation"], figures["success, eval"] = validated, evaluated
    apart = abs(evaluated - validated) * TASKS
    require(apart < (2.5 if place.gpu else 0.5), f"eval solves {apart:.0f} of {TASKS} tasks more or fewer than the run")


@contextmanager
def gpu_memory(samples: list[tuple[float, int]]) -> Iterator[None]:
    """Record (time, MiB in use on the first GPU) ten times a second; nothing without nvidia-smi."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--loop-ms=100", f"--id={first}"]
    try:
        process = subprocess.Popen(query, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    except FileNotFoundError:
        yield
        return

    def read() -> None:
        for line in process.stdout or ():
            if line.strip().isdigit():
                samples.append((time.time(), int(line)))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield
    finally:
        process.kill()
        process.wait()
        reader.join()


def asleep(samples: Sequence[tuple[float, int]], ends: Sequence[float]) -> list[int]:
    """The lowest use of memory in each step after the first, when the servers sleep and no policy has loaded yet.

    Args:
        samples: (time, MiB in use).
        ends: end times of the steps.
    """
    steps = itertools.pairwise(ends)
    return [min((used for at, used in samples if first < at <= last), default=0) for first, last in steps]
