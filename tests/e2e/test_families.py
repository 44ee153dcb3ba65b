"""The CPU recipes of the task families train two steps each. MARL_VERL_LONG=1, six starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from marl_verl_tiny.pretrained import SMOLLM2

from marl_verl.config.variants import variant_overrides
from marl_verl.testing import real
from tests.e2e.conftest import long

pytestmark = [pytest.mark.e2e, long]

RECIPES = Path(__file__).parents[2] / "recipes"
ROLES: dict[str, dict[str, tuple[float, float] | None]] = {  # family -> agent -> range of its role reward
    "code": {"coder": (0.0, 2.0), "tester": (0.0, 2.0)},
    "games": {"agent-1": None, "agent-2": None},
    "math": {"solver": (-0.1, 1.0), "verifier": (-0.1, 1.0)},
    "search": {"verifier": (-0.1, 1.0), "searcher": (-0.1, 1.0), "answerer": (0.0, 1.0)},
    "writing": {"one": None, "two": None},
}


@pytest.mark.parametrize("family", ROLES)
def test_a_family_trains(family: str, tmp_path: Path) -> None:
    steps = ("trainer.total_training_steps=2", "trainer.test_freq=-1", "trainer.save_freq=2")
    run = real.train(RECIPES / family / f"{family}_cpu.yaml", tmp_path / family, *steps)
    assert run.code == 0, run.output
    lines = run.lines("train/success")
    assert [line["train/failed_episodes"] for line in lines] == [0, 0]
    for policy in run.summary["policies"].values():
        assert policy["weight_change"] > 0
    rows = [row for step in (1, 2) for row in real.rows(run.folder, step)]
    assert {row["agent"] for row in rows} == set(ROLES[family])
    for row in rows:
        bounds = ROLES[family][row["agent"]]
        assert ("role" in row["rewards"]) == (bounds is not None)
        if bounds is not None:
            assert bounds[0] <= row["rewards"]["role"] <= bounds[1]
    assert len({row["rewards"]["team"] for row in rows}) > 1


def test_pretrained_models_train_with_magrpo_on_humaneval(tmp_path: Path) -> None:
    """MAGRPO's code recipe with the authors' problems and two SmolLM2. Every program runs in the sandbox."""
    SMOLLM2.fetch()
    recipe = RECIPES / "magrpo" / "code.yaml"
    run = real.train(recipe, tmp_path / "humaneval", *variant_overrides(recipe, ["smollm2"]))
    assert run.code == 0, run.output
    assert [line["train/failed_episodes"] for line in run.lines("train/success")] == [0, 0, 0]
    for policy in run.summary["policies"].values():
        assert policy["weight_change"] > 0
    problems, rewards = set(), set()
    for step in (1, 2, 3):
        lines = (run.folder / "journals" / f"step_{step:05d}.jsonl").read_text().splitlines()
        episodes = [line for line in map(json.loads, lines) if "answer" in line]
        assert {episode["sandbox"] for episode in episodes} == {"isolated"}  # the tier that the recipe requires
        problems |= {episode["task"]["id"] for episode in episodes}
        rows = real.rows(run.folder, step)
        assert {row["agent"] for row in rows} == {"helper", "main"}
        assert {row["turn"] for row in rows} == {0, 1}
        rewards |= {row["rewards"]["team"] for row in rows}
    assert problems <= {f"HumanEval/{number}" for number in range(33, 164)}
    assert len(problems) == 6
    assert "dtype mismatch" not in (run.folder / "train.log").read_text()
    assert len(rewards) > 2
    assert all(0 <= reward <= 4 for reward in rewards)
