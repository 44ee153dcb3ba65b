"""Two policies on one base model, with an adapter each in one training worker and one server.

They record what separate policies record, to the digit, also when they are resumed; and with two ranks and two servers,
the servers have the adapters that the ranks learnt.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e.conftest import Finished, long, recorded, resume, train
from tests.e2e.test_ranks import BOTH, RECIPE, TOLERANCE, between_servers_and_export, shards

pytestmark = [pytest.mark.e2e, long]

FULL = "full: {tiny: {agents: [holder, asker], steps: 100, good: 0.2}}"
OTHER = FULL.replace("full: {", "full: {base: shared, model: {lora_rank: 8, lora_alpha: 16}, ")
SEPARATE = ("marl.policies.full.base=null", "marl.policies.lora.base=null")
# without tokens: the last digits of a server's log-probs depend on which requests it answers together
ONE_RANK = (
    "marl.run.journal_tokens=false",
    "trainer.n_gpus_per_node=1",
    "trainer.total_training_steps=4",
    "trainer.save_freq=2",
    "trainer.test_freq=2",
)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "shared.yaml"
    text = RECIPE.replace(FULL, OTHER).replace("lora: {tiny", "lora: {base: shared, tiny")
    assert text.count("base: shared") == 2
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def shared(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    done = train(tmp_path_factory.mktemp("shared") / "run", *ONE_RANK, recipe=recipe)
    assert done.code == 0, done.output
    return done


def test_a_run_is_that_of_separate_policies(shared: Finished, recipe: Path, tmp_path: Path) -> None:
    separate = train(tmp_path / "run", *ONE_RANK, *SEPARATE, recipe=recipe)
    assert separate.code == 0, separate.output
    assert recorded(shared) == recorded(separate)
    assert all(policy["weight_change"] > 1e-3 for policy in shared.summary["policies"].values())


def test_a_resumed_run_is_the_same(shared: Finished, tmp_path: Path) -> None:
    shutil.copytree(shared.folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step_4")
    resumed = resume(tmp_path / "run")
    assert resumed.code == 0, resumed.output
    assert recorded(resumed) == recorded(shared)


def test_two_ranks_and_two_servers(recipe: Path, tmp_path: Path) -> None:
    options = ("trainer.total_training_steps=2", "trainer.test_freq=2", "marl.checkpoint.keep=3")
    ranks = train(tmp_path / "run", *options, recipe=recipe)
    assert ranks.code == 0, ranks.output
    for policy in ("full", "lora"):
        assert shards(ranks, 1, f"policies/{policy}") == BOTH
        differences = between_servers_and_export(ranks, policy, tmp_path / policy, merge=True)
        assert len(differences) == 8 * 8  # tasks, episodes
        assert max(differences) < TOLERANCE
