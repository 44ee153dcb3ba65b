"""Check of throughput: a one-policy run against stock verl's trainer with the same model, prompts and settings."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

from marl_verl.run.progress import Display
from marl_verl.run.supervisor import TrainerProcess
from marl_verl_diagnose.selftest import Figures, Place, require
from marl_verl_diagnose.selftest.models import random_model
from marl_verl_diagnose.selftest.runs import learnt, recipe, trained

STEPS, EPISODES = 5, 8
LEAST = 0.8  # of stock verl's tokens a second
METRICS = "stock.jsonl"
PLUGIN = Path(__file__).with_name("one_agent.py")


def check(place: Place, figures: Figures) -> None:
    content = recipe(
        place, {"solver": {"tiny": None, "loss": None, "model": {"path": random_model(place)}}}, pool=False
    )
    content["marl"] |= {"workflow": {"name": "solve"}, "agents": {"solver": {"policy": "solver"}}}
    content["marl"]["sampler"] = {"options": {"episodes": EPISODES}}
    if place.gpu:
        length, rows = 512, 32
        content["actor_rollout_ref"]["actor"]["ppo_max_token_len_per_gpu"] = 8192
        content["actor_rollout_ref"]["rollout"]["log_prob_max_token_len_per_gpu"] = 8192
    else:
        length, rows = 8, 16
    content["data"] |= {"train_batch_size": rows, "max_response_length": length}
    content["actor_rollout_ref"]["actor"]["ppo_mini_batch_size"] = rows
    content["actor_rollout_ref"]["rollout"]["max_model_len"] = 64 + length
    content["trainer"] |= {"total_training_steps": STEPS, "save_freq": -1, "test_freq": STEPS}
    run = trained(place, "solo", content, {}, plugins=[PLUGIN])
    lines = learnt(run, range(1, STEPS + 1), (), figures)
    ours = rate([(line["train/tokens"], line["seconds/step"]) for line in lines])
    stock = rate(_stock(place, run.folder, rows * EPISODES))
    figures |= {"tokens per second": ours, "tokens per second of stock verl": stock, "ratio": ours / stock}
    require(ours >= LEAST * stock, f"{ours:.4g} tokens a second, stock verl {stock:.4g}")


def rate(steps: list[tuple[float, float]]) -> float:
    """Sampled tokens per second from (tokens, seconds) of each step, without the first."""
    return sum(tokens for tokens, _ in steps[1:]) / sum(seconds for _, seconds in steps[1:])


def _stock(place: Place, ours: Path, rows: int) -> list[tuple[float, float]]:
    """(tokens, seconds) of each step of stock verl, with the config and the tasks of our run."""
    folder = place.work / "stock"
    shutil.copytree(ours / "data", folder / "data")
    shutil.copy(ours / "config.yaml", folder / "config.yaml")
    TrainerProcess(folder, [], "marl_verl_diagnose.selftest.stock").run(Display(), time.time())
    lines = [json.loads(line)["data"] for line in (folder / METRICS).read_text().splitlines()]
    steps: list[dict[str, Any]] = [line for line in lines if "timing_s/step" in line]
    return [(line["response_length/mean"] * rows, line["timing_s/step"]) for line in steps]
