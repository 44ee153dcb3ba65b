"""`python -m tests.benchmarks.from_verl FOLDER`: one verl script, trained by stock verl and by `marl_verl.main_ppo`.

Both get the same overrides, model, rows (a GSM8K-style parquet with sums) and data seed, and nothing else but what a
machine without a GPU needs. Prints the share of right answers in training for each step, per seed, and the difference
with its interval. Runs that are in FOLDER already are not repeated; `--limit 1` ends after one run.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import yaml
from marl_verl_report.decide import estimate
from marl_verl_scripts.verl_script import translate
from marl_verl_tiny.model import TinyModel, ensure_all
from omegaconf import OmegaConf

from marl_verl.run.prepare import plan_run
from tests.benchmarks.measure import measure
from tests.benchmarks.run import install_plugin
from tests.benchmarks.stock import environment, on_a_cpu, with_newline

SEEDS, STEPS, TASKS = (0, 1, 2), 20, 640
OURS, STOCK = "marl_verl.main_ppo", "verl.trainer.main_ppo"
SCRIPT = """
algorithm.adv_estimator=grpo algorithm.use_kl_in_reward=false
data.train_files={folder}/train.parquet data.val_files={folder}/test.parquet data.train_batch_size=32
data.max_prompt_length=32 data.max_response_length=8 data.filter_overlong_prompts=true data.truncation=error
data.seed={seed}
actor_rollout_ref.model.path={folder}/model
actor_rollout_ref.actor.optim.lr=1e-3 actor_rollout_ref.actor.ppo_mini_batch_size=32
actor_rollout_ref.actor.use_dynamic_bsz=true actor_rollout_ref.actor.ppo_max_token_len_per_gpu=65536
actor_rollout_ref.actor.use_kl_loss=false actor_rollout_ref.actor.entropy_coeff=0
actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.max_model_len=64
actor_rollout_ref.rollout.tensor_model_parallel_size=1 actor_rollout_ref.rollout.seed={seed}
trainer.critic_warmup=0 trainer.logger=[file] trainer.experiment_name=sums-{seed}
trainer.n_gpus_per_node=1 trainer.nnodes=1 trainer.save_freq=-1 trainer.test_freq=20 trainer.total_epochs=1
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=int, help="number of runs, instead of all that are missing")
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as site:
        install_plugin(Path(site))
        if not (folder / "model").is_dir():
            make(folder)
        missing = [(seed, module) for seed in SEEDS for module in (OURS, STOCK) if not ended(folder, module, seed)]
        for seed, module in missing[: options.limit]:
            train(folder, module, seed)
            print(module, seed, "  ".join(f"{value:.3f}" for value in curve(folder, module, seed)), flush=True)
    if options.limit is None or len(missing) <= options.limit:
        report(folder)


def make(folder: Path) -> None:
    """The model, and the rows of both splits: sums of two digits, one in five held out."""
    (made,) = ensure_all([TinyModel(task="sums", agents=["solver"], steps=150, good=0.25)])
    for split, count in (("train", TASKS), ("test", 20)):
        pairs = [(a, b) for a in range(10) for b in range(10) if ((a + 3 * b) % 5 == 0) == (split == "test")]
        drawn = pairs if split == "test" else random.Random(0).choices(pairs, k=count)
        rows = []
        for number, (a, b) in enumerate(drawn):
            prompt = [{"role": "user", "content": f"{a} plus {b}"}]
            truth = {"style": "rule", "ground_truth": str(a + b)}
            row = {"data_source": "openai/gsm8k", "prompt": prompt, "ability": "math", "reward_model": truth}
            rows.append({**row, "extra_info": {"split": split, "index": number}})
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{split}.parquet")
    with_newline(made, folder / "model")
    template = folder / "model" / "chat_template.jinja"  # without the new token, which the model has never seen
    template.write_text(template.read_text().replace("\\n", " "))


def train(folder: Path, module: str, seed: int) -> None:
    script = SCRIPT.format(folder=folder, seed=seed).split()
    if module == OURS:
        where = [f"marl.run.dir={folder}", f"marl.run.name=ours-{seed}", f"marl.run.seed={seed}"]
        measure([sys.executable, "-m", OURS, *script, *where], folder)
        return
    metrics = folder / f"stock-{seed}.part"
    command = [sys.executable, "-m", STOCK, *script, *needed_on_a_cpu(folder, script)]
    measure(command, folder, {**environment(), "VERL_FILE_LOGGER_PATH": str(metrics)})
    metrics.rename(folder / f"stock-{seed}.jsonl")


def needed_on_a_cpu(folder: Path, script: list[str]) -> list[str]:
    """What marl-verl sets by itself on a machine without a GPU, for stock verl."""
    recipe, overrides, _ = translate(script)
    file = folder / "sums.yaml"
    file.write_text(yaml.safe_dump({"defaults": ["marl_trainer", "_self_"], **recipe}))
    ours: Any = OmegaConf.create(OmegaConf.to_container(plan_run(file, overrides).resolved))
    ours.actor_rollout_ref = ours.policies.solver.actor_rollout_ref
    return on_a_cpu(ours, folder)


def ended(folder: Path, module: str, seed: int) -> bool:
    done = folder / f"ours-{seed}" / "summary.json" if module == OURS else folder / f"stock-{seed}.jsonl"
    return done.is_file() and (module == STOCK or len(curve(folder, module, seed)) == STEPS)


def curve(folder: Path, module: str, seed: int) -> list[float]:
    """Share of right answers among the sampled episodes of each step."""
    if module == OURS:
        lines = [json.loads(line) for line in (folder / f"ours-{seed}" / "metrics.jsonl").read_text().splitlines()]
        return [line["train/success"] for line in lines if "train/success" in line]
    lines = [json.loads(line)["data"] for line in (folder / f"stock-{seed}.jsonl").read_text().splitlines()]
    return [line["critic/score/mean"] for line in lines if "critic/score/mean" in line]


def report(folder: Path) -> None:
    """The table of docs/from-verl.md: means over steps, and the difference paired by seed, with rows in one order."""
    seeds = [seed for seed in SEEDS if ended(folder, OURS, seed) and ended(folder, STOCK, seed)]
    curves = {(module, seed): curve(folder, module, seed) for module in (OURS, STOCK) for seed in seeds}
    print(f"| steps | {OURS} | {STOCK} | difference, 95 % interval |\n|---|---|---|---|")
    for name, steps in [("1 to 5", slice(0, 5)), ("6 to 20", slice(5, 20)), ("all", slice(0, STEPS))]:
        ours, stock = ([statistics.mean(curves[module, seed][steps]) for seed in seeds] for module in (OURS, STOCK))
        shares = [", ".join(f"{value:.3f}" for value in side) for side in (ours, stock)]
        paired = estimate([one - other for one, other in zip(ours, stock, strict=True)])
        print(f"| {name} | {shares[0]} | {shares[1]} | {paired.mean:+.3f} ± {paired.high - paired.mean:.3f} |")
    for seed in seeds:
        both = statistics.correlation(curves[OURS, seed], curves[STOCK, seed])
        print(f"seed {seed}: correlation of the two curves over the steps {both:.2f}")


if __name__ == "__main__":
    main()
