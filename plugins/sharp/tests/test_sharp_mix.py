"""SHARP's three rewards as one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from marl_verl_testing.rows import Rows, algorithm, row

from marl_verl import MarlError
from marl_verl.algo.advantage import AdvantageResult, RowTable
from marl_verl.algo.algorithms import Algorithm

GOLDEN = Path(__file__).resolve().parents[4] / "shared" / "golden" / "rewards"


def compute(method: Algorithm, rows: Rows) -> AdvantageResult:
    return method.compute(RowTable.from_rows(rows))


def advantage(method: Algorithm, rows: Rows) -> np.ndarray:
    return compute(method, rows).advantage


def test_the_planner_earns_a_share_of_what_its_workers_add() -> None:
    rows = [
        row("q", 0, 0, 0, "planner", broadcast=1.0),
        row("q", 0, 1, 0, "search", broadcast=1.0, mc=0.5, tool=1.0),
        row("q", 0, 2, 1, "search", broadcast=1.0, mc=0.1, tool=0.0),  # on average 0.3
        row("q", 0, 3, 0, "code", broadcast=1.0, mc=-1.0),  # harmful: counts as 0 for the planner, as -1 for itself
        row("q", 1, 0, 0, "planner", broadcast=0.0),  # no worker was called
    ]
    reward = compute(algorithm("sharp", lam=2.0), rows).reward
    planner = 0.9 + 0.9 * 2.0 * (0.3 + 0.0) / 2
    np.testing.assert_allclose(reward, [planner, 0.9 + 0.45 + 0.1, 0.9 + 0.09, 0.9 - 0.9, 0.0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"planner": "planer"}, r"unknown agent 'planer': did you mean 'planner'"),
        ({}, r"row 'q_0_1' of worker 'search' lacks reward 'mc'"),
    ],
)
def test_what_sharp_cannot_do_without(change: dict[str, Any], message: str) -> None:
    rows = [row("q", 0, 0, 0, "planner", broadcast=1.0), row("q", 0, 1, 0, "search", broadcast=1.0)]
    with pytest.raises(MarlError, match=message):
        advantage(algorithm("sharp", **change), rows)


SESSIONS = json.loads((GOLDEN / "sharp_session_mean.json").read_text())


@pytest.mark.parametrize("case", SESSIONS["cases"], ids=lambda case: case["name"])
def test_an_agent_counts_once_in_a_session(case: dict[str, Any]) -> None:
    result = compute(algorithm("sharp"), case["rows"])
    assert case["expected"]["rewards"] == pytest.approx(list(result.reward), rel=SESSIONS["rtol"])
    near = {"rtol": SESSIONS["rtol"], "atol": SESSIONS["atol"]}
    np.testing.assert_allclose(result.advantage, case["expected"]["advantages"], **near)
