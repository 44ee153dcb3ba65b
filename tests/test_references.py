"""Each preset computes what its straight-line reference computes, on random rows."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_verl import plugins
from marl_verl.algo.advantage import RowTable
from tests.batches import FIT, algorithm, joint_trees, keep


@pytest.mark.parametrize("name", plugins.load().names("algorithms"))
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_a_preset_is_its_reference(name: str, data: st.DataObject) -> None:
    made = joint_trees if name == "magrpo" else FIT.get(name, FIT["grpo"])
    rows = data.draw(made())
    if name in ("remax", "gdpo"):
        rows = [{**row, "columns": {"greedy": row["value"]}} for row in keep(rows, team="team")]
    if name == "mars2-plus":
        rows = [{**row, "length": 32768 - 60 * row["length"]} for row in rows]
    order = data.draw(st.permutations(range(len(rows))))
    result = algorithm(name).compute(RowTable.from_rows([rows[i] for i in order]))
    module: Any = sys.modules[str(plugins.load().entry("algorithms", name).target).partition(":")[0]]
    np.testing.assert_allclose(result.advantage[np.argsort(order)], module.REFERENCES[name](rows), rtol=1e-6, atol=1e-6)
