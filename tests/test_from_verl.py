"""`marl-verl from-verl`: the arguments in a shell script, other engines as FSDP and vLLM, and the files it writes."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from marl_verl_tiny import factory
from marl_verl_tiny.shape import Shape

from marl_verl import plugins
from marl_verl.cli.main import main
from marl_verl.config.hardware import HARDWARE_VARIABLE
from marl_verl.config.shell_script import trainer_arguments
from marl_verl.config.verl_engines import to_fsdp_and_vllm
from marl_verl.errors import MarlError

CALL = 'python3 -m verl.trainer.main_ppo a.b=1 data.path="$data/x y" '
SCRIPTS = {
    "variables and defaults": ("data=${DATA:-here}\nn=$((2 * 4))\n" + CALL + 'n=$n "$@"', ["n=8"]),
    "an array with conditions and comments": (
        'data=here\nARGS=(\n  c=1  # why\n  # d=2\n)\nif [ "${MODE:-x}" = x ]; then ARGS+=(e=3); else ARGS+=(f=4); fi\n'
        + CALL
        + '"${ARGS[@]}"',
        ["c=1", "e=3"],
    ),
    "continuations and a pipe": (
        f"set -xeuo pipefail\ndata=here\n{CALL}\\\n  c=1 \\\n  c=2 2>&1 | tee log",
        ["c=1", "c=2"],
    ),
    "a log file, which is not made": ("data=here\n" + CALL + "c=1 > made.log 2>&1", ["c=1"]),
    "a job of Ray": ("data=here\nray job submit --working-dir . -- " + CALL + "c=1", ["c=1"]),
    "exec in a function": ("data=here\nrun() { exec " + CALL + '"$@"; }\ncd /\nrun c=1', ["c=1"]),
    "what another device would have": (
        "data=here\ndevice=$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)\n" + CALL + "d=$device",
        ["d=gpu"],
    ),
    "arithmetic": (
        f"data=here\nn=4\nif (( n > 8 )); then b=9; else b=64; fi\nm=$(( (n + 1) > 8 ? 8 : n ))\n{CALL}b=$b m=$m > log",
        ["b=64", "m=4"],
    ),
    "a watcher in the background": (f"data=here\nwhile true; do nvidia-smi; sleep 60; done &\n{CALL}c=1", ["c=1"]),
    "a loop": ("data=here\nfor k in 1 2; do list+=(k$k=$k); done\n" + CALL + '"${list[@]}"', ["k1=1", "k2=2"]),
    "its own folder": ('data=here\nhere="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"\n' + CALL + "c=1", ["c=1"]),
    "a path and another program": (
        f"data=here\nexport PATH=/bin:$PATH\nulimit -n 9\nmkdir -p made\n{CALL}c=1",
        ["c=1"],
    ),
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(HARDWARE_VARIABLE, "gpu")
    monkeypatch.delenv("DATA", raising=False)
    yield
    plugins.use_files([])


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_arguments_are_those_that_bash_would_pass(name: str, tmp_path: Path) -> None:
    text, more = SCRIPTS[name]
    (tmp_path / "run.sh").write_text(f"#!/usr/bin/env bash\n{text}\n")
    assert trainer_arguments(Path("run.sh")) == [["a.b=1", "data.path=here/x y", *more]]
    assert os.listdir(tmp_path) == ["run.sh"]


@pytest.mark.parametrize(
    "line",
    [
"/bin/rm -rf victim",
"echo x>victim/kept",
"command -p rm -rf victim",
"source ./evil.sh",
"bash -c 'rm -rf victim'",
],
)  # fmt: skip
def test_a_script_changes_nothing(line: str, tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "kept").write_text("kept")
    (tmp_path / "evil.sh").write_text("echo gone > victim/kept\n")
    (tmp_path / "run.sh").write_text(f"data=here\n{line}\n{CALL}\n")
    with contextlib.suppress(MarlError):  # a restricted command may end the script
        trainer_arguments(Path("run.sh"))
    assert (tmp_path / "victim" / "kept").read_text() == "kept"


ENGINES = """
--config-path=config
--config-name=ppo_megatron_trainer.yaml
model_engine=megatron
data.shuffle=True
actor_rollout_ref.actor.strategy=megatron                  actor_rollout_ref.actor.strategy=fsdp2
actor_rollout_ref.actor.megatron.param_offload=True        actor_rollout_ref.actor.fsdp_config.param_offload=True
actor_rollout_ref.ref.megatron.optimizer_offload=True      actor_rollout_ref.ref.fsdp_config.optimizer_offload=True
actor_rollout_ref.actor.megatron.context_parallel_size=4   actor_rollout_ref.actor.ulysses_sequence_parallel_size=4
actor_rollout_ref.actor.veomni.ulysses_parallel_size=2     actor_rollout_ref.actor.ulysses_sequence_parallel_size=2
actor_rollout_ref.actor.megatron.tensor_model_parallel_size=8
critic.megatron.param_offload=False                        critic.fsdp_config.param_offload=False
+actor_rollout_ref.actor.megatron.override_transformer_config.recompute_num_layers=1 \
    actor_rollout_ref.model.enable_gradient_checkpointing=True
+actor_rollout_ref.actor.optim.override_optimizer_config.optimizer_cpu_offload=True
actor_rollout_ref.model.lora.rank=16                       actor_rollout_ref.model.lora_rank=16
actor_rollout_ref.rollout.name=sglang                      actor_rollout_ref.rollout.name=vllm
+actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend=fa3
"""
"""Arguments for other engines, and what becomes of them ("": nothing)."""
SAME = ("data.shuffle=True",)
PLAIN = ["data.shuffle=True", "actor_rollout_ref.actor.strategy=fsdp", "+actor_rollout_ref.actor.optim.min_lr=0.1"]


def test_other_engines_become_fsdp_and_vllm() -> None:
    lines = [line.split() for line in ENGINES.replace("\\\n", "").strip().splitlines()]
    right = [(line[0], "".join(line[1:])) for line in lines if line[0] not in SAME]
    words, changes = to_fsdp_and_vllm([line[0] for line in lines])
    assert changes == right
    assert words == [line[-1] for line in lines if len(line) > 1 or line[0] in SAME]
    assert to_fsdp_and_vllm(PLAIN) == (PLAIN, [])


@pytest.mark.slow
@pytest.mark.parametrize("agents", [1, 2])
def test_the_written_files_are_a_run(agents: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = factory.make_tokenizer(["what", "is"])
    factory.make_model(Shape(hidden=64, heads=64, kv_heads=8, head_dim=32), words, 0).save_pretrained("model")
    words.save_pretrained("model")
    for split in ("train", "test"):
        rows = [
            {"data_source": "openai/gsm8k", "prompt": [{"role": "user", "content": f"what is {split} {number}"}],
             "reward_model": {"ground_truth": str(number)}}
            for number in range(16)
        ]  # fmt: skip
        Path(f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("run_megatron.sh").write_text(
        "export MODEL=${MODEL:-model}\nOPTIONS=(model_engine=megatron\n  trainer.balance_batch=True)\n"
        "python3 -m verl.trainer.main_ppo --config-name=ppo_megatron_trainer.yaml algorithm.adv_estimator=grpo \\\n"
        "  data.train_files=$PWD/train.jsonl data.val_files=$PWD/test.jsonl data.train_batch_size=16 \\\n"
        "  data.max_prompt_length=64 data.max_response_length=8 actor_rollout_ref.model.path=$MODEL \\\n"
        "  actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4 actor_rollout_ref.rollout.name=sglang \\\n"
        "  actor_rollout_ref.actor.ppo_mini_batch_size=16 actor_rollout_ref.rollout.n=2 reward_model.enable=True \\\n"
        "  +actor_rollout_ref.model.override_config.attn_implementation=sdpa \\\n"
        '  trainer.n_gpus_per_node=8 trainer.total_epochs=2 "${OPTIONS[@]}" | tee log\n'
    )
    given = ["from-verl", "run_megatron.sh", "--agents", str(agents), "--write", "mine"]
    assert main(given) == 0
    fates: dict[str, list[str]] = {}
    for line in capsys.readouterr().out.splitlines():
        fate, _, rest = line.partition(" ")
        fates.setdefault(fate, []).append(rest.strip())
    assert "data.train_batch_size=16" in fates["kept"]
    assert any(line.startswith("actor_rollout_ref.rollout.n=2 -> ") for line in fates["translated"])
    assert "actor_rollout_ref.rollout.name=sglang -> actor_rollout_ref.rollout.name=vllm" in fates["converted"]
    assert fates["dropped"] == ["trainer.balance_batch=True"]
    assert [line.partition(":")[0] for line in fates["refused"]] == ["reward_model.enable=True"]
    recipe: Any = yaml.safe_load(Path("mine/run_megatron.yaml").read_text())
    assert recipe["data"]["train_batch_size"] == 16
    assert "# refused: reward_model.enable=True" in Path("mine/run_megatron.yaml").read_text()
    script = Path("mine/run_megatron.sh")
    assert os.access(script, os.X_OK)
    command = shlex.split(
        script.read_text().partition("exec marl-verl ")[2].replace("$here", "mine").replace("\\\n", "")
    )[:-1]
    assert main([*command, "--dry-run", "--assume", "gpus=8,flash-attn"]) == 0, capsys.readouterr().err
    team = capsys.readouterr().out
    assert team.count("  agent ") == agents
    assert ("pool" in team) == (agents == 2)
    assert main(given) == 2
    assert "'mine/run_megatron.yaml' exists" in capsys.readouterr().err
