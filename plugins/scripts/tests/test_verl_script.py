"""`python -m marl_verl.main_ppo`: the overrides of verl's example scripts, the estimators, and what is refused."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from marl_verl_scripts import main
from marl_verl_scripts.verl_script import translate
from marl_verl_tiny import factory
from marl_verl_tiny.model import Shape

from marl_verl.api import plan_of
from marl_verl.config.hardware import HARDWARE_VARIABLE
from marl_verl.errors import MarlError
from marl_verl.run.describe import describe

SCRIPT = Path(__file__).parents[3] / "recipes" / "verl" / "gsm8k.sh"
GRPO = """
algorithm.adv_estimator=grpo
data.train_files=train.jsonl
data.val_files=['test.jsonl']
data.train_batch_size=16
data.max_prompt_length=16
data.max_response_length=8
data.filter_overlong_prompts=True
data.truncation='error'
actor_rollout_ref.model.path=model
actor_rollout_ref.actor.optim.lr=1e-6
actor_rollout_ref.model.use_remove_padding=True
actor_rollout_ref.actor.ppo_mini_batch_size=8
actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4
actor_rollout_ref.actor.use_kl_loss=True
actor_rollout_ref.actor.kl_loss_type=low_var_kl
actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4
actor_rollout_ref.rollout.tensor_model_parallel_size=2
actor_rollout_ref.rollout.name=vllm
actor_rollout_ref.rollout.mode=async
actor_rollout_ref.rollout.n=5
actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4
actor_rollout_ref.ref.fsdp_config.param_offload=True
algorithm.use_kl_in_reward=False
trainer.critic_warmup=0
trainer.logger=['console','file']
trainer.experiment_name='qwen3_8b/function_rm'
trainer.n_gpus_per_node=8
trainer.save_freq=20
trainer.total_epochs=15
trainer.resume_mode=auto
trainer.v1.trainer_mode=sync
"""
PPO = """
algorithm.adv_estimator=gae
algorithm.lam=0.95
critic.optim.lr=1e-5
critic.model.path=model
critic.ppo_micro_batch_size_per_gpu=4
critic.fsdp.param_offload=False
reward_model.enable=False
trainer.total_training_steps=7
trainer.default_local_dir=mine/ppo
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows of verl's form, of which one is too long, and a model."""
    folder = tmp_path_factory.mktemp("verl")
    for split, count in (("train", 40), ("test", 4)):
        rows = [
            {
                "data_source": "openai/gsm8k",
                "prompt": [{"role": "user", "content": f"{'word ' * (40 if number == 3 else 1)}{split}{number}"}],
                "reward_model": {"style": "rule", "ground_truth": "4"},
                "extra_info": {"split": split, "index": number},
            }
            for number in range(count)
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    words = factory.make_tokenizer(["word"])
    factory.make_model(Shape(), words, 0).save_pretrained(folder / "model")
    words.save_pretrained(folder / "model")
    return folder


@pytest.fixture(autouse=True)
def _here(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


def planned(script: str, *more: str) -> Any:
    recipe, overrides, _ = translate([*script.split(), *more])
    return plan_of(recipe, overrides)


def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HARDWARE_VARIABLE, "gpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")


@pytest.mark.slow
def test_a_grpo_script_is_a_team_of_one_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch)
    plan = planned(GRPO)
    assert plan.team.agents_of("solver") == ["solver"]
    assert (plan.team.task.name, plan.team.workflow.name, plan.team.algorithm.name) == ("verl", "single", "grpo")
    assert plan.config.marl.sampler.options.episodes == 5
    assert (len(plan.tasks["train"]), len(plan.tasks["test"])) == (39, 3)
    dropped = ["1 of 40 train tasks dropped", "1 of 4 test tasks dropped"]
    assert [note.partition(":")[0] for note in plan.notes[:2]] == dropped
    assert plan.config.trainer.total_training_steps == 30  # 15 epochs of 39 // 16 batches
    assert plan.config.trainer.experiment_name == "qwen3_8b/function_rm"
    actor = plan.resolved.policies.solver.actor_rollout_ref.actor
    assert (actor.use_dynamic_bsz, actor.ppo_micro_batch_size_per_gpu, actor.use_kl_loss) == (False, 4, True)
    rollout = plan.resolved.policies.solver.actor_rollout_ref.rollout
    assert (rollout.log_prob_use_dynamic_bsz, rollout.tensor_model_parallel_size) == (False, 2)
    assert "of 16 tasks" in describe(plan)


@pytest.mark.slow
def test_a_ppo_script_has_a_critic(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    gpus(monkeypatch)
    plan = planned(GRPO, *PPO.split())
    assert plan.team.algorithm.name == "ippo"
    assert plan.team.algorithm.options == {"advantage": {"returns": {"lam": 0.95}}}
    assert plan.config.marl.sampler.options.episodes == 5
    critic = plan.resolved.critics.solver.critic
    assert (critic.optim.lr, critic.ppo_micro_batch_size_per_gpu, critic.model.path) == (1e-5, 4, "model")
    assert plan.config.trainer.total_training_steps == 7  # fewer than 15 epochs
    assert plan.folder == place / "mine" / "ppo"


@pytest.mark.slow
def test_a_team_is_added_by_its_keys(tmp_path: Path, place: Path) -> None:
    (tmp_path / "my_team.py").write_text(
        "from marl_verl import Workflow, hookimpl\n"
        "class Pair(Workflow):\n"
        "    async def run(self, task, team):\n"
        "        draft = await team['solver'].act(task.prompt)\n"
        "        return (await team['verifier'].act(draft.text)).text\n"
        "@hookimpl\n"
        "def marl_register(registry):\n"
        "    registry.workflow('pair', Pair)\n"
    )
    team = """marl.agents.solver.policy=a marl.agents.verifier.policy=b marl.workflow.name=pair
    marl.algorithm.name=grpo-trajectory-mean marl.policies.a={}
    marl.policies.b={model:{lora_rank:4},actor:{policy_loss:{loss_mode:gspo}}}"""
    of_one_policy = "adv_estimator|parallel|remove_padd|kl_loss|gpus"
    script = [line for line in GRPO.splitlines() if not re.search(of_one_policy, line)]
    plan = planned("\n".join(script), *team.split(), f"marl.plugins=[{tmp_path / 'my_team.py'}]")
    assert plan.team.agents["verifier"].policy == "b"
    assert plan.team.policies["b"].override["model"] == {"lora_rank": 4}
    assert re.search(r"policy  a: .* ppo-clip,(.|\n)*policy  b: .* gspo \(policy_loss\.loss_mode\),", describe(plan))
    assert plan.team.algorithm.name == "grpo-trajectory-mean"
    assert plan.config.marl.sampler.options.episodes == 5


def recipe(*overrides: str) -> dict[str, Any]:
    return translate(overrides)[0]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("marl.algorithm.name=at-grpo algorithm.norm_adv_by_std_in_grpo=False", r"set marl\.algorithm\.name and"),
        ("algorithm.adv_estimator=grop", r"unknown algorithm\.adv_estimator 'grop': did you mean 'grpo'"),
        ("algorithm.use_kl_in_reward=True", r"actor\.use_kl_loss=true"),
        ("actor_rollout_ref.actor.ppo_micro_batch_size=64", "set ppo_micro_batch_size_per_gpu"),
        ("actor@actor_rollout_ref.actor=megatron_actor", "unknown key 'actor': did you mean 'actor_rollout_ref'"),
        ("model_engine=megatron", "policies are trained by verl's FSDP engine"),
        ("+data.max_promt_length=3", "did you mean 'max_prompt_length'"),
        ("train.parquet", "is not of the form key=value"),
    ],
)
def test_what_does_not_apply_is_refused_with_what_replaces_it(overrides: str, message: str) -> None:
    with pytest.raises(MarlError, match=message):
        planned(overrides)


DROPS = """
trainer.log_val_generations=10 trainer.balance_batch=False trainer.resume_mode=disable trainer.resume_from_path=x
trainer.critic_warmup=0 trainer.default_local_dir= trainer.rollout_data_dir=x trainer.max_critic_ckpt_to_keep=1
algorithm.kl_ctrl.kl_coef=0.1 algorithm.kl_ctrl.type=adaptive algorithm.kl_penalty=abs algorithm.lam=0.9
data.filter_overlong_prompts=True data.truncation=middle data.filter_overlong_prompts_workers=64
actor_rollout_ref.rollout.mode=sync actor_rollout_ref.rollout.multi_turn.format=hermes
actor_rollout_ref.model.use_shm=True +actor_rollout_ref.actor.use_prefix_grouper=True
actor_rollout_ref.actor.profiler.enable=True global_profiler.steps=[1,2] reward_model.enable=False
reward_model.model.path=judge critic.optim.lr=1e-5 critic.model.path=x hydra.run.dir=x
actor_rollout_ref.actor.checkpoint.save_contents=[hf_model,model]
reward.reward_manager.name=prime model_engine=dp actor_rollout_ref.hybrid_engine=True actor_rollout_ref.nccl_timeout=9
actor_rollout_ref.actor.use_torch_compile=False actor_rollout_ref.actor.use_fused_kernels=True
actor_rollout_ref.actor.clip_ratio=0.3
"""


def test_what_changes_nothing_of_what_is_trained_is_dropped_and_listed() -> None:
    script, _, dropped = translate([*DROPS.split(), "algorithm.adv_estimator=grpo"])
    assert script["data"]["filter_overlong_prompts"] is True
    for line in DROPS.split():
        key = line.removeprefix("+").partition("=")[0]
        assert any(text.startswith(f"{key}=") for text in dropped) or key == "data.filter_overlong_prompts", line


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (
            "reward_model.reward_manager=dapo +reward_model.reward_kwargs.overlong_buffer_cfg.enable=True "
            "+reward_model.reward_kwargs.overlong_buffer_cfg.len=4096 +reward_model.reward_kwargs.max_resp_len=20480 "
            "+reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor=0.5 "
            "+reward_model.reward_kwargs.overlong_buffer_cfg.log=True",
            {"marl.algorithm.options.advantage.overlong": {"L": 20480, "C": 4096, "factor": 0.5}},
        ),
        (
            "algorithm.filter_groups.enable=True algorithm.filter_groups.metric=acc "
            "algorithm.filter_groups.max_num_gen_batches=10 data.gen_batch_size=99",
            {"marl.sampler.filter": {"no_variance": True, "refill": 9}},
        ),
        ("algorithm.filter_groups.enable=True", {"marl.sampler.filter": {"no_variance": True, "refill": None}}),
        ("data.truncation=left", {"data.filter_overlong_prompts": True}),
        (
            "data.train_files=/d/a.jsonl data.train_max_samples=7 data.shuffle=False sandbox_fusion.url=http://here "
            "custom_reward_function.path=mine.py +custom_reward_function.reward_kwargs.bonus=2",
            {
                "marl.task.options.train_files": ["/d/a.jsonl"],
                "marl.task.options.train_max_samples": 7,
                "marl.task.options.shuffle": False,
                "marl.run.sandbox": "external:http://here",
                "marl.task.reward": "mine.py:compute_score",
                "marl.task.reward_kwargs.bonus": 2,
                "data.shuffle": False,
            },
        ),
    ],
)
def test_keys_with_a_counterpart_are_translated(lines: str, wanted: dict[str, Any]) -> None:
    script, _, _ = translate([*lines.split(), "algorithm.adv_estimator=grpo"])
    assert dict(leaves(script, recipe("algorithm.adv_estimator=grpo"))) == wanted


def leaves(section: dict[str, Any], usual: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a section that are not the usual ones."""
    for key, value in section.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and key not in ("overlong", "filter"):
            yield from leaves(value, usual.get(key, {}), f"{path}.")
        elif value != usual.get(key):
            yield path, value


def test_a_second_policy_shares_the_gpus_and_begins_with_the_same_model(monkeypatch: pytest.MonkeyPatch) -> None:
    team = ["marl.agents.solver.policy=solver", "marl.agents.verifier.policy=verifier", "trainer.n_gpus_per_node=8"]
    first = "marl.policies.solver.model.use_remove_padding=false"
    memory = "actor_rollout_ref.rollout.gpu_memory_utilization=0.6"
    monkeypatch.setenv(HARDWARE_VARIABLE, "gpu")
    marl = recipe(*team, first, memory)["marl"]
    pooled = {"pool": "gpus", "rollout": {"gpu_memory_utilization": 0.3}}
    assert marl["policies"] == {"solver": {"model": {"use_remove_padding": False}, **pooled}, "verifier": pooled}
    assert marl["pools"] == {"gpus": {"gpus": 8, "nodes": 1}}
    assert "pools" not in recipe(*team[:1], "marl.agents.verifier.policy=solver")["marl"]
    assert recipe(*team, "marl.pools={mine: {gpus: 2}}")["marl"]["pools"] == {"mine": {"gpus": 2}}
    monkeypatch.setenv(HARDWARE_VARIABLE, "cpu")
    assert recipe(*team)["marl"]["policies"] == {"solver": {}, "verifier": {}}
    monkeypatch.delenv(HARDWARE_VARIABLE)
    assert recipe(*team, "trainer.nnodes=2")["ray_kwargs"]["ray_init"] == {"address": "auto"}


@pytest.mark.slow
def test_the_module_prints_the_team(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    gpus(monkeypatch)
    assert main.main([*GRPO.split()[:-2], "--dry-run", *GRPO.split()[-2:]]) == 0
    printed = capsys.readouterr().out
    assert "task    verl (39 train, 3 test), workflow single" in printed
    assert "dropped, it changes nothing of what is trained: " in printed
    assert main.main([*GRPO.split(), "data.val_files=train.jsonl", "--dry-run"]) == 2
    assert "39 tasks are in both splits" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main.main([*GRPO.split(), "--config-file=x"])
    assert "unrecognized arguments: --config-file=x" in capsys.readouterr().err


@pytest.mark.slow
def test_the_recipes_script_is_right(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch)
    (tmp_path / "python3").write_text('#!/usr/bin/env bash\nprintf "%s\\0" "$@" > "$CALLED"\n')
    (tmp_path / "python3").chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLED": str(tmp_path / "called")}
    small = ["data.train_batch_size=16", "actor_rollout_ref.actor.ppo_mini_batch_size=8", "data.max_prompt_length=24"]
    subprocess.run([str(SCRIPT), "team", *small], env={**env, "MODEL": "model", "DATA": "data"}, check=True)
    flag, module, *overrides = (tmp_path / "called").read_text().split("\0")[:-1]
    assert (flag, module) == ("-m", "marl_verl.main_ppo")
    (place / "data").mkdir(exist_ok=True)
    for split in ("train", "test"):
        rows = [json.loads(line) for line in (place / f"{split}.jsonl").read_text().splitlines()]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), place / "data" / f"{split}.parquet")
    plan = planned("", *overrides)
    assert list(plan.team.agents) == list(plan.team.policies) == ["solver", "verifier"]
    assert plan.config.trainer.total_training_steps == 30
