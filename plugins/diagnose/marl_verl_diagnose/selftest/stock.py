"""Stock verl's trainer with the config of a one-policy run: `python -m marl_verl_diagnose.selftest.stock FOLDER`.

It runs on marl-verl's CPU platform where there is no GPU, and uses nothing else of marl-verl. Uses verl internals:
`run_ppo` and `TaskRunnerV1` of `verl.trainer.main_ppo`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from marl_verl.backend.verl.session import start_ray
from marl_verl.trainer.run import main

EPISODES, METRICS = 8, "stock.jsonl"

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return float(solution_str.strip() == ground_truth)
"""


def stock_config(config: Any, folder: Path, episodes: int) -> Any:
    """verl's own config from that of a one-policy run: its policy's settings, without the team."""
    (policy,) = config.policies.values()
    stock: Any = OmegaConf.create(OmegaConf.to_container(config))
    stock.actor_rollout_ref = policy.actor_rollout_ref
    stock.algorithm.rollout_correction = policy.algorithm.rollout_correction
    stock.actor_rollout_ref.rollout.name, stock.actor_rollout_ref.rollout.n = "vllm", episodes
    stock.data.val_batch_size = None
    stock.data.train_files, stock.data.val_files = (str(folder / f"{split}.parquet") for split in ("train", "test"))
    reward = {"path": str(folder / "reward.py"), "name": "compute_score"}
    stock.reward.custom_reward_function = {**stock.reward.custom_reward_function, **reward}
    stock.trainer.logger, stock.trainer.test_freq = ["file"], -1
    stock.trainer.default_local_dir = str(folder / "checkpoints")
    for name in ("marl", "policies", "critics"):
        stock.pop(name, None)
    return stock


def write_data(folder: Path) -> None:
    """The run's tasks in verl's format, and their reward."""
    import pyarrow
    import pyarrow.parquet

    (folder / "reward.py").write_text(REWARD)
    for split in ("train", "test"):
        tasks = [json.loads(line) for line in (folder / "data" / f"{split}.jsonl").read_text().splitlines()]
        rows = [
            {
                "data_source": "inventory",
                "prompt": [{"role": "user", "content": task["prompt"]}],
                "reward_model": {"style": "rule", "ground_truth": task["data"]["digits"][task["data"]["index"] - 1]},
                "extra_info": {"index": number, "split": split},
            }
            for number, task in enumerate(tasks)
        ]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{split}.parquet")


def train(folder: Path) -> None:
    import ray

    config: Any = OmegaConf.load(folder / "config.yaml")
    os.environ["VERL_FILE_LOGGER_PATH"] = str(folder / METRICS)  # before Ray's workers inherit the environment
    write_data(folder)
    config.ray_kwargs.ray_init.num_cpus = 32 * int(config.trainer.n_gpus_per_node)  # logical
    start_ray(config)
    from verl.trainer.main_ppo import TaskRunnerV1, run_ppo

    try:
        run_ppo(stock_config(config, folder, EPISODES), TaskRunnerV1)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), train))
