"""IPPO and MAPPO on the real stack: critics learn beside the policies, are saved and continued, and leave nothing.

Ctrl-C ends IPPO's run. MAPPO's run is that of the topology tests.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from marl_verl.config.stored import read_config
from marl_verl.run.checkpoint.folders import complete
from marl_verl.run.checkpoint.weights import policy_change
from marl_verl.run.run_dir import RunDir
from marl_verl.testing.real import explain
from tests.e2e.conftest import INVENTORY, Finished, Five, long, resume, until_signal
from tests.sites import add_distribution

pytestmark = pytest.mark.e2e

SHORT = (
    "data.train_batch_size=16",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "marl.sampler.options.episodes=3",
    "marl.critic.optim.lr=1e-3",
    "marl.task.test_size=20",
    "marl.run.seed=1",
    "trainer.test_freq=6",
    "trainer.save_freq=3",
)
# tells what TransferQueue holds at the end of a step, before the rows of that step leave it
PLUGIN = """
import json
import transfer_queue as tq
from marl_verl import hookimpl

@hookimpl
def marl_step_finished(step, metrics):
    held = {partition: sorted({key.partition("t")[0] for key in keys}) for partition, keys in tq.kv_list().items()}
    with open(%r, "a") as file:
        file.write(json.dumps([step, held]) + "\\n")
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the plugin is installed."""
    site = tmp_path_factory.mktemp("site")
    (site / "queue_plugin.py").write_text(PLUGIN % str(site / "queue.jsonl"))
    add_distribution(site, "queue-plugin", {"queue": "queue_plugin"})
    return site


def path(site: Path) -> str:
    return os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))


@pytest.fixture(scope="module")
def ippo(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Six steps; in the seventh, of which nothing is looked at, comes Ctrl-C."""
    folder, checkpoint = tmp_path_factory.mktemp("runs") / "ippo", Path("checkpoints", "step_6")
    place = (f"marl.run.dir={folder.parent}", f"marl.run.name={folder.name}", "trainer.total_training_steps=1000")
    command = [sys.executable, "-m", "marl_verl.cli.main", "train", str(INVENTORY), "marl.algorithm.name=ippo"]
    done = until_signal(
        signal.SIGINT,
        [*command, *SHORT, *place],
        folder,
        lambda: folder / checkpoint in complete(folder / "checkpoints"),
        {"PYTHONPATH": path(site)},
    )
    RunDir(folder).forget_after(6)  # as a continuation does
    shutil.move(site / "queue.jsonl", folder / "queue.jsonl")
    return done


def learnt(run: Finished, policy: str) -> float:
    """How far a policy's weights at step 6 are from those before training, relative to their size."""
    model = str(read_config(run.folder / "config.yaml").policies[policy].actor_rollout_ref.model.path)
    _, change = policy_change(model, run.folder / "checkpoints" / "step_6" / "policies" / policy)
    return change or 0.0


def check_learning(run: Finished, critics: Sequence[str], steps: Sequence[int]) -> None:
    """Every critic moves from 0 towards what came of the turns, with weights that change."""
    for name in critics:
        lines = run.lines(f"critic/{name}/vf_loss")
        assert [line["step"] for line in lines] == list(steps)
        assert lines[0][f"critic/{name}/value"] == 0.0  # a new head
        missed = [abs(line[f"critic/{name}/target"] - line[f"critic/{name}/value"]) for line in lines]
        assert missed[-1] < 0.7 * missed[0]
        for line in lines:
            assert line[f"critic/{name}/explained_variance"] <= 1.0
            assert line[f"critic/{name}/grad_norm"] > 0
        assert changed(run.folder, "critics", name) > 1e-4


def changed(run: Path, kind: str, name: str) -> float:
    """How far the weights moved from the first checkpoint to the second, relative to their size."""
    before, after = (weights(run, step, kind, name) for step in (3, 6))
    assert before.keys() == after.keys()
    assert "score.weight" in before
    moved = sum(float((after[key] - before[key]).pow(2).sum()) for key in before)
    return math.sqrt(moved / sum(float(before[key].pow(2).sum()) for key in before))


def weights(folder: Path, step: int, kind: str, name: str) -> dict[str, torch.Tensor]:
    file = folder / "checkpoints" / f"step_{step}" / kind / name / "model_world_size_1_rank_0.pt"
    state = torch.load(file, weights_only=False)
    return {key: value.to_local() if hasattr(value, "to_local") else value for key, value in state.items()}


def stored(folder: Path, step: int) -> Any:
    with gzip.open(folder / "rows" / f"step_{step:05d}.json.gz", "rt") as file:
        return json.load(file)


def check_rows(run: Finished, step: int, learning: Sequence[str], variables: dict[str, str]) -> list[float]:
    """Every row of the agents that learn has its value, and gives the same advantage again. The value targets."""
    document, targets = stored(run.folder, step), []
    records = explain(run.folder, step, variables)
    assert [record["advantage"] for record in records] == document["advantage"]
    turns = Counter((row["uid"], row["session"], row["agent"]) for row in document["rows"])
    for record, row in zip(records, document["rows"], strict=True):
        steps = {each["name"]: each["value"] for each in record["transforms"]}
        assert isinstance(row.get("value"), float) == (row["agent"] in learning)
        if row["agent"] in learning:
            assert steps["value"] == row["value"]
            targets.append(steps["value target"])
            if turns[row["uid"], row["session"], row["agent"]] == 1:  # then the return is its reward
                assert steps["value target"] == pytest.approx(record["reward"])
    return targets


@long
def test_ippo_has_a_critic_for_each_policy(ippo: Finished) -> None:
    check_learning(ippo, ["holder", "asker"], range(1, 7))
    first = ippo.lines("train/success")[0]
    for name in ("holder", "asker"):
        assert first[f"critic/{name}/target"] == pytest.approx(first["train/success"])
        assert learnt(ippo, name) > 1e-4


@long
def test_ippo_stores_values(ippo: Finished) -> None:
    for step in (1, 6):
        check_rows(ippo, step, ["holder", "asker"], {})
    assert len({row["value"] for row in stored(ippo.folder, 6)["rows"]}) > 10


@long
def test_nothing_stays_in_transfer_queue(ippo: Finished) -> None:
    lines = [json.loads(line) for line in (ippo.folder / "queue.jsonl").read_text().splitlines()]
    assert [step for step, _ in lines][:6] == [1, 2, 3, 4, 5, 6]
    for step, held in lines:
        assert list(held) == ["train"]
        assert set(held["train"]) <= {f"s{step}"}


@long
def test_ctrl_c_in_a_step_leaves_nothing_running(ippo: Finished) -> None:
    assert ippo.code == 130, ippo.output
    assert "interrupted" in ippo.output
    assert ippo.left == []


def test_mappo_has_one_critic_for_all(five: Five) -> None:
    check_learning(five, ["team"], range(2, 7))
    shapes = {tuple(value.shape) for value in weights(five.folder, 6, "critics", "team").values()}
    assert (1, 32) in shapes  # the head of its own model


def test_mappo_values_the_turns_of_all_policies_that_learn(five: Five) -> None:
    """Also the second turns of an agent, and no turn of the frozen policy."""
    for line in five.lines("critic/team/target"):
        targets = check_rows(five, line["step"], ["left", "right", "tuned", "foreign"], five.variables)
        assert line["critic/team/target"] == pytest.approx(sum(targets) / len(targets))
    assert len({row.get("value") for row in stored(five.folder, 6)["rows"]}) > 10


def test_mappo_tells_what_it_could_not_read(five: Five) -> None:
    cut = [line["critic/team/cut"] for line in five.lines("critic/team/cut")]
    assert len(cut) == 5
    assert 0.0 < min(cut) <= max(cut) < 1.0  # who comes later has more to read


@long
def test_a_continued_run_has_the_same_critics(
    ippo: Finished, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", path(site))
    folder = tmp_path / "halved"
    shutil.copytree(ippo.folder, folder)
    shutil.rmtree(folder / "checkpoints" / "step_6")
    done = resume(folder, f"marl.run.dir={tmp_path}", "trainer.total_training_steps=6")
    assert done.code == 0, done.output
    ours, theirs = (
        [{key: value for key, value in line.items() if "seconds" not in key} for line in run.lines("critic/holder/lr")]
        for run in (done, ippo)
    )
    kept = [key for key in theirs[-1] if key.startswith(("critic/", "train/", "agent/"))]
    assert [[line[key] for key in kept] for line in ours] == [[line[key] for key in kept] for line in theirs]
    for name in ("holder", "asker"):
        before, after = weights(ippo.folder, 6, "critics", name), weights(folder, 6, "critics", name)
        assert all(torch.equal(before[key], after[key]) for key in before)
