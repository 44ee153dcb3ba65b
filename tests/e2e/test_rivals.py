"""Recipes of agents with interests of their own train two steps each. MARL_VERL_LONG=1, four starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from marl_verl.testing import real
from tests.e2e.conftest import long

pytestmark = [pytest.mark.e2e, long]

RECIPES = Path(__file__).parents[2] / "recipes" / "self_play"
SIDES = {  # recipe -> agent -> its side
    "proposer_solver": {"proposer": "proposer", "solver": "solver"},
    "debate": {"pro": "pro", "con": "con", "judge": None},
    "inventory_match": {f"{side}-{role}": side for side in ("red", "blue") for role in ("holder", "asker")},
}


@pytest.mark.parametrize("name", SIDES)
def test_rivals_are_trained(name: str, tmp_path: Path) -> None:
    steps = ("trainer.total_training_steps=2", "trainer.test_freq=2", "trainer.save_freq=2", "marl.task.test_size=20")
    run = real.train(RECIPES / f"{name}_cpu.yaml", tmp_path / name, *steps)
    assert run.code == 0, run.output
    assert [line["train/failed_episodes"] for line in run.lines("train/success")] == [0, 0]
    for policy, found in run.summary["policies"].items():
        assert policy == "judge" or found["weight_change"] > 0
    rows = [row for step in (1, 2) for row in real.rows(run.folder, step)]
    assert {row["agent"] for row in rows} == set(SIDES[name])
    assert {"role" in row["rewards"] for row in rows} == {name == "proposer_solver"}
    if name == "proposer_solver":
        assert {row["rewards"]["role"] for row in rows if row["agent"] == "solver"} == {0.0, 1.0}
        return
    for uid, session in {(row["uid"], row["session"]) for row in rows}:
        own = {
            SIDES[name][row["agent"]]: row["team_reward"]
            for row in rows
            if (row["uid"], row["session"]) == (uid, session)
        }
        assert sum(own.values()) == 0


def test_a_model_is_trained_against_a_script(tmp_path: Path) -> None:
    steps = ("trainer.total_training_steps=2", "trainer.test_freq=2", "trainer.save_freq=2", "marl.task.test_size=6")
    bot = (
        "marl.policies.bot.script=kuhn-equilibrium",
        "marl.agents.second.policy=bot",
        "marl.agents.second.reward=null",
    )
    run = real.train(RECIPES / "kuhn_cpu.yaml", tmp_path / "kuhn", *steps, *bot)
    assert run.code == 0, run.output
    assert run.summary["policies"]["player"]["weight_change"] > 0
    assert run.summary["policies"]["bot"] == {"parameters": None, "weight_change": 0.0, "frozen": True}
    rows = [row for step in (1, 2) for row in real.rows(run.folder, step)]
    assert {row["agent"] for row in rows} == {"first", "second"}
    assert not any(row["invalid"] for row in rows if row["agent"] == "second")
