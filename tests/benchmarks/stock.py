"""The peer: stock verl's own `main_ppo` on a CPU, with the settings, model and tasks of the one-agent team.

It runs on marl-verl's CPU platform, without which it has no CPU to run on, and uses nothing else of marl-verl.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
from omegaconf import OmegaConf

from tests.benchmarks.measure import Measured, measure

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return float(solution_str.strip() == ground_truth)
"""


def run(bench: Path, name: str, steps: int) -> Measured:
    """Train `steps` steps with the model, tasks and settings of our run `bench/name`, and measure them."""
    files, tasks, policy = {}, bench / name / "data", "solver"
    ours: Any = OmegaConf.load(bench / name / "config.yaml")
    ours.actor_rollout_ref = ours.policies[policy].actor_rollout_ref
    for split in ("train", "test"):
        rows = [json.loads(line) for line in (tasks / f"{split}.jsonl").read_text().splitlines()]
        table = [
            {
                "data_source": "lookup",
                "prompt": [{"role": "user", "content": row["prompt"]}],
                "reward_model": {"style": "rule", "ground_truth": row["data"]["digits"][row["data"]["index"] - 1]},
                "extra_info": {"index": number, "split": split},
            }
            for number, row in enumerate(rows)
        ]
        files[split] = bench / f"stock-{split}.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), files[split])
    reward = bench / "stock_reward.py"
    reward.write_text(REWARD)
    metrics = bench / f"stock-{name}-metrics.jsonl"
    model = str(with_newline(Path(ours.actor_rollout_ref.model.path), bench / "stock-model"))
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *overrides(ours, model, files, reward, steps, bench)]
    seen = measure(command, bench, {**environment(), "VERL_FILE_LOGGER_PATH": str(metrics)})
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    trained = [line["data"] for line in lines if "timing_s/step" in line["data"]]
    seen.step_seconds = [line["timing_s/step"] for line in trained]
    # what is left of the whole after the steps that follow the first
    seen.first_step = seen.seconds - sum(seen.step_seconds[1:])
    return seen


def with_newline(model: Path, folder: Path) -> Path:
    """The model with a token for a line break, which stock verl's agent loop wants of every Qwen tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    if tokenizer.decode(tokenizer("\n", add_special_tokens=False)["input_ids"]) == "\n":
        return model
    shutil.copytree(model, folder, dirs_exist_ok=True)
    tokenizer.add_tokens(["\n"])
    tokenizer.save_pretrained(folder)
    network = AutoModelForCausalLM.from_pretrained(folder)
    network.resize_token_embeddings(len(tokenizer))
    network.save_pretrained(folder)
    return folder


def environment() -> dict[str, str]:
    from marl_verl.config.hardware import RUN_VARIABLE, has_accelerator
    from marl_verl.run.supervisor import _variables

    base = _variables(has_accelerator())
    return {**base, RUN_VARIABLE: "benchmark", "HF_HUB_OFFLINE": "1", "RAY_AUTH_MODE": "disabled"}


SAME = (
    *("data.train_batch_size", "data.max_prompt_length", "data.max_response_length"),
    *("actor_rollout_ref.actor.ppo_mini_batch_size", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"),
    *("actor_rollout_ref.actor.optim.lr", "actor_rollout_ref.actor.optim.lr_warmup_steps"),
    "actor_rollout_ref.rollout.max_model_len",
)
FIXED = """
reward.custom_reward_function.name=compute_score algorithm.adv_estimator=grpo actor_rollout_ref.rollout.name=vllm
actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.tensor_model_parallel_size=1
trainer.logger=[file] trainer.val_before_train=false trainer.save_freq=-1 trainer.test_freq=-1
"""


def overrides(ours: Any, model: str, files: dict[str, Path], reward: Path, steps: int, bench: Path) -> list[str]:
    """Our CPU settings and the one-agent team's, in verl's own words."""
    return [
        *on_a_cpu(ours, bench),
        *(f"++{key}={OmegaConf.select(ours, key)}" for key in SAME),
        *(f"actor_rollout_ref.model.path={model}", f"data.train_files={files['train']}"),
        *(f"data.val_files={files['test']}", f"reward.custom_reward_function.path={reward}"),
        f"trainer.total_training_steps={steps}",
        *FIXED.split(),
    ]


def on_a_cpu(ours: Any, folder: Path) -> list[str]:
    """What marl-verl sets by itself on a machine without a GPU, for stock verl.

    Args:
        ours: a resolved config of marl-verl, with the policy's `actor_rollout_ref`.
    """
    import yaml

    from marl_verl.config.compose import HERE

    keys = [key for key, _ in _flat(yaml.safe_load((HERE / "hardware" / "cpu.yaml").read_text()))]
    selected = [(key, OmegaConf.select(ours, key)) for key in keys]
    values = [(key, OmegaConf.to_container(value) if OmegaConf.is_config(value) else value) for key, value in selected]
    return [
        *(f"++{key}={'null' if value is None else value}" for name, part in values for key, value in _flat(part, name)),
        *("data.dataloader_num_workers=0", "actor_rollout_ref.rollout.agent.num_workers=1", "reward.num_workers=1"),
        *(f"trainer.default_local_dir={folder / 'stock-checkpoints'}", f"hydra.run.dir={folder / 'stock-hydra'}"),
        *("ray_kwargs.ray_init.num_cpus=16", "+ray_kwargs.ray_init.num_gpus=1"),
        "+ray_kwargs.ray_init.include_dashboard=false",
    ]


def _flat(node: object, prefix: str = ""):
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from _flat(value, f"{prefix}.{key}" if prefix else str(key))
    elif prefix and not prefix.startswith("marl."):
        yield prefix, str(node).lower() if isinstance(node, bool) else node
