"""The CPU recipes of the task families train two steps each. MARL_VERL_LONG=1, four starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from marl_verl.testing import real
from tests.e2e.conftest import long

pytestmark = [pytest.mark.e2e, long]

RECIPES = Path(__file__).parents[2] / "recipes"
ROLES = {  # family -> agent -> range of its role reward
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
