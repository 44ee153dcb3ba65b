"""Updating one policy leaves the other's weights untouched, in trainer and server."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from marl_verl.cli.prepare import make_run_directory, plan_run
from marl_verl.cli.progress import Display
from marl_verl.cli.trainer_process import TrainerProcess
from tests.e2e.conftest import INVENTORY, ROOT

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    runs = tmp_path_factory.mktemp("isolation")
    # a rate at which one update shows in four digits
    overrides = [f"marl.run.dir={runs}", "actor_rollout_ref.actor.optim.lr=1e-2", "data.train_batch_size=32"]
    display = Display()
    folder = make_run_directory(
        plan_run(INVENTORY, [*overrides, "actor_rollout_ref.actor.optim.lr_warmup_steps=0"]), display
    )
    os.environ["PYTHONPATH"] = str(ROOT)
    code = TrainerProcess(folder, ["holder", "asker"], module="tests.e2e.isolation").run(display, begun=0.0)
    assert code == 0, (folder / "train.log").read_text()[-3000:]
    return json.loads((Path(folder) / "isolation.json").read_text())


def test_rows_reach_the_policy_that_produced_them(seen: dict[str, Any]) -> None:
    assert seen["agents"] == {"holder": ["holder"], "asker": ["asker"]}
    keys = [key for rows in seen["rows"].values() for key in rows]
    assert len(keys) == len(set(keys)) == 32 * 8 * 2


@pytest.mark.parametrize("side", ["trainer", "server"])
def test_updating_one_policy_changes_only_that_one(seen: dict[str, Any], side: str) -> None:
    before, first, second = (
        {name: both[side] for name, both in seen[when].items()} for when in ("before", "after_holder", "after_asker")
    )
    assert first["holder"] != before["holder"]
    assert first["asker"] == before["asker"]
    assert second["asker"] != first["asker"]
    assert second["holder"] == first["holder"]
