"""A credit that plays episodes again, on the real stack, and Ctrl-C in a step. Other methods: `tests/local/`."""

from __future__ import annotations

import pytest
from marl_verl_testing.real import explain, rows

from tests.e2e.conftest import Finished

pytestmark = pytest.mark.e2e


def test_masked_runs_went_through_the_models(stopped: Finished) -> None:
    line = stopped.lines("train/success")[0]
    assert line["train/failed_episodes"] == 0
    assert line["train/extra_tokens/credit"] > 0
    stored = [row for row in rows(stopped.folder, 1) if not row["padding"]]
    assert all(("mc" in row["rewards"]) == (row["agent"] != "planner") for row in stored)
    records = {record["key"]: record for record in explain(stopped.folder, 1)}
    for row in stored:
        record = records[f"{row['uid']}_{row['session']}_{row['index']}"]
        assert record["group"] == {"uid": row["uid"], "agent": row["agent"]}
    assert any(record["advantage"] for record in records.values())


def test_ctrl_c_in_a_step_leaves_nothing_running(stopped: Finished) -> None:
    assert stopped.code == 130, stopped.output
    assert "interrupted" in stopped.output
    assert stopped.left == []
