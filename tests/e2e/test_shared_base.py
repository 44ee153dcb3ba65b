"""Two policies on one base model, with an adapter each, on two ranks: two servers have what the ranks learnt."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import long, train
from tests.e2e.test_ranks import BOTH, RECIPE, TOLERANCE, between_servers_and_export, shards

pytestmark = [pytest.mark.e2e, long]

FULL = "full: {tiny: {agents: [holder, asker], steps: 100, good: 0.2}}"
OTHER = FULL.replace("full: {", "full: {base: shared, model: {lora_rank: 8, lora_alpha: 16}, ")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "shared.yaml"
    text = RECIPE.replace(FULL, OTHER).replace("lora: {tiny", "lora: {base: shared, tiny")
    assert text.count("base: shared") == 2
    path.write_text(text)
    return path


def test_two_ranks_and_two_servers(recipe: Path, tmp_path: Path) -> None:
    options = ("trainer.total_training_steps=2", "trainer.test_freq=2", "marl.checkpoint.keep=3")
    ranks = train(tmp_path / "run", *options, recipe=recipe)
    assert ranks.code == 0, ranks.output
    for policy in ("full", "lora"):
        assert shards(ranks, 1, f"policies/{policy}") == BOTH
        differences = between_servers_and_export(ranks, policy, tmp_path / policy, merge=True)
        assert differences.max() < TOLERANCE
