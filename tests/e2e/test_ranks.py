"""Policies with two ranks, two servers and two rollout workers; a shared pool of two ranks, and one on two Ray nodes.

The actions of step 2 were sampled by both servers with the weights of checkpoint 1, which both ranks have saved.
"""

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from marl_verl_testing.real import command

from tests.e2e.conftest import Finished, long, my_team, resume, train
from tests.served import acts_of, gaps, turns
from tests.weights import change

pytestmark = [pytest.mark.e2e, pytest.mark.long]  # tests/test_ranks.py compares two ranks with one

RECIPE = """
defaults: [marl_trainer, _self_]
marl:
  run: {journal_tokens: true}
  task: {name: inventory, train_size: 64, test_size: 4}
  workflow: {name: inventory}
  algorithm: {name: at-grpo-sessions}
  agents: {holder: {policy: full}, asker: {policy: lora}}
  policies:
    full: {tiny: {agents: [holder, asker], steps: 100, good: 0.2}}
    lora: {tiny: {agents: [holder, asker], steps: 100, good: 0.2}, model: {lora_rank: 8, lora_alpha: 16}}
data: {train_batch_size: 8, max_prompt_length: 48, max_response_length: 8}
actor_rollout_ref:
  actor: {ppo_mini_batch_size: 8, optim: {lr: 1.0e-2}}     # one update shows
  rollout: {max_model_len: 64, agent: {num_workers: 2}}
trainer: {n_gpus_per_node: 2, total_training_steps: 3, test_freq: 3, save_freq: 1, val_before_train: false}
"""
POLICIES = ("full", "lora")
AGENTS = {"full": "holder", "lora": "asker"}
SHORTER = ("trainer.total_training_steps=2", "trainer.test_freq=2")
TOLERANCE = 1e-4  # nats a token, float32 on both sides


@pytest.fixture(scope="module")
def ranks(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Three steps of a full and a LoRA policy."""
    done = train(tmp_path_factory.mktemp("ranks") / "run", "marl.checkpoint.keep=3", recipe=recipe)
    assert done.code == 0, done.output
    return done


def shards(run: Finished, step: int, part: str) -> list[str]:
    return sorted(path.name for path in (run.folder / "checkpoints" / f"step_{step}" / part).glob("model_*"))


BOTH = ["model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt"]


def between_servers_and_export(run: Finished, policy: str, model: Path, merge: bool) -> torch.Tensor:
    """Of each token of a policy in step 2, the difference between the log-prob of the servers and that of checkpoint 1,
    which is exported to folder `model`."""
    options = ["--policy", policy, "--output", str(model), "--step", "1", *["--merge"] * merge]
    command("export", str(run.folder), *options)
    acts = acts_of(run, 2, AGENTS[policy])
    assert len(acts) == 8 * 8  # tasks, episodes
    return gaps(model, acts)


@pytest.mark.parametrize("policy", POLICIES)
def test_both_servers_and_an_export_have_what_the_ranks_learnt(ranks: Finished, policy: str, tmp_path: Path) -> None:
    assert shards(ranks, 1, f"policies/{policy}") == BOTH
    assert between_servers_and_export(ranks, policy, tmp_path / "model", merge=policy == "lora").max() < TOLERANCE
    assert change(ranks.folder, policy) > 1e-3


def test_every_task_of_both_rollout_workers_is_learnt_from_once(ranks: Finished) -> None:
    log = (ranks.folder / "train.log").read_text(errors="replace")
    servers = [line for line in log.splitlines() if line.startswith("LLMServerManager: [")]
    assert [line.count(":") - 1 for line in servers] == [2, 2]  # addresses of each policy's servers
    for step, line in enumerate(ranks.lines("train/success"), start=1):
        keys = [key for key, _ in turns(ranks, step)]
        assert len(keys) == len(set(keys)) == 2 * 8 * 8
        assert {key.split("_")[0] for key in keys} == {f"s{step}t{task:05d}" for task in range(8)}
        assert line["train/episodes"] == 64
        assert all(line[f"policy/{name}/grad_norm"] >= 0 for name in POLICIES)


def test_another_number_of_ranks_is_refused(ranks: Finished) -> None:
    done = resume(ranks.folder, "trainer.n_gpus_per_node=1", "trainer.total_training_steps=4")
    assert done.code == 2
    assert "DeviceMesh" not in done.output
    assert "marl.policies.full.gpus (2 -> 1), marl.policies.lora.gpus (2 -> 1)" in " ".join(done.output.split())


@long
def test_adapters_on_one_base(recipe: Path, tmp_path: Path) -> None:
    full = "full: {tiny: {agents: [holder, asker], steps: 100, good: 0.2}}"
    other = full.replace("full: {", "full: {base: shared, model: {lora_rank: 8, lora_alpha: 16}, ")
    text = RECIPE.replace(full, other).replace("lora: {tiny", "lora: {base: shared, tiny")
    assert text.count("base: shared") == 2
    (tmp_path / "shared.yaml").write_text(text)
    done = train(tmp_path / "run", *SHORTER, "marl.checkpoint.keep=3", recipe=tmp_path / "shared.yaml")
    assert done.code == 0, done.output
    for policy in POLICIES:
        assert shards(done, 1, f"policies/{policy}") == BOTH
        assert between_servers_and_export(done, policy, tmp_path / policy, merge=True).max() < TOLERANCE


@long
def test_a_shared_pool_with_a_critic(recipe: Path, tmp_path: Path) -> None:
    pool = ("marl.pools.both={gpus: 2}", *(f"marl.policies.{name}.pool=both" for name in POLICIES))
    done = train(tmp_path / "run", *SHORTER, *pool, "marl.algorithm.name=mappo", recipe=recipe)
    assert done.code == 0, done.output
    assert [shards(done, 2, part) for part in ("policies/full", "policies/lora", "critics/team")] == [BOTH] * 3
    assert all(line["critic/team/grad_norm"] > 0 for line in done.lines("train/success"))
    again = resume(done.folder, "trainer.total_training_steps=3")
    assert again.code == 0, again.output
    assert again.lines("train/success")[-1]["step"] == 3


# Two Ray nodes, which are two sets of processes of this machine, with a token


@contextmanager
def cluster(place: Path) -> Iterator[dict[str, str]]:
    """Two nodes with one slot each. Yields the variables of a driver that has their token."""
    token = place / "token"
    token.write_text(secrets.token_hex(32))
    variables = {"RAY_AUTH_TOKEN_PATH": str(token)}
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--num-cpus=16", "--num-gpus=1", "--block"]
    started: list[subprocess.Popen[bytes]] = []

    def node(name: str, *options: str, **more: str) -> str:
        log = place / f"{name}.log"
        environment = {**os.environ, **variables, **more, "RAY_USAGE_STATS_ENABLED": "0"}
        with log.open("wb") as output:
            started.append(subprocess.Popen([*start, *options], env=environment, stdout=output, stderr=output))
        until = time.monotonic() + 120
        while "Ray runtime started" not in (text := log.read_text()):
            assert started[-1].poll() is None, text
            assert time.monotonic() < until, text
            time.sleep(0.2)
        return text

    try:
        # both nodes have the ports of this machine
        text = node("head", "--head", "--include-dashboard=false", "--min-worker-port=10002", "--max-worker-port=11999")
        address = text.partition("--address='")[2].partition("'")[0]
        ports = ("--min-worker-port=12000", "--max-worker-port=13999")
        node("other", f"--address={address}", *ports, RAY_AUTH_MODE="token")
        yield {**variables, "ADDRESS": address}
    finally:
        alive = [each for each in started if each.poll() is None]
        children = [child for each in alive for child in psutil.Process(each.pid).children(recursive=True)]
        for each in started:
            each.terminate()
        for each in started:
            each.wait(timeout=60)
        for child in children:
            if child.is_running():
                child.kill()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with cluster(tmp_path_factory.mktemp("nodes")) as variables:
        yield variables


@long
@pytest.mark.parametrize("address", ["auto", "ADDRESS"])
def test_a_pool_on_two_nodes_with_a_plugin_file(nodes: dict[str, str], address: str, tmp_path: Path) -> None:
    my_team(tmp_path)
    pool = (
        *("+marl.pools.both={gpus: 1, nodes: 2}", "marl.policies.sender.pool=both"),
        "marl.policies.answerer.pool=both",
    )
    small = ("data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=8", "marl.task.test_size=4")
    where = f"+ray_kwargs.ray_init.address={nodes.get(address, address)}"
    workers = "actor_rollout_ref.rollout.agent.num_workers=2"
    given = (*SHORTER, "trainer.save_freq=2", *small, *pool, workers, where)
    done = train(tmp_path / "run", *given, recipe=tmp_path / "my_team.yaml", **_token(nodes))
    assert done.code == 0, done.output
    assert [shards(done, 2, f"policies/{name}") for name in ("sender", "answerer")] == [BOTH] * 2
    assert _of_runs() == []


def _token(nodes: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in nodes.items() if name != "ADDRESS"}


def _of_runs() -> list[Any]:
    """Command lines of processes of runs; the cluster's are not."""
    found = []
    for process in psutil.process_iter():
        try:
            if "MARL_VERL_RUN" in process.environ() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.cmdline())
        except psutil.Error:
            continue
    return found
