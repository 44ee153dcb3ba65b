"""Tables of several rollout workers, joined in the trainer, against one table of all their rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marl_verl.algo.advantage import RowTable
from marl_verl.algo.advantage.concat import concat
from marl_verl.errors import MarlError

NAMES = st.sampled_from(["a", "b", "c"])
NUMBERS = st.floats(-1, 1)


@st.composite
def row(draw: st.DrawFn, key: tuple[str, int, int]) -> dict[str, Any]:
    """A row of a team in which some rows lack what others have."""
    length = draw(st.integers(1, 3))
    columns = draw(st.fixed_dictionaries({}, optional={"nll": NUMBERS, "each": st.just([0.5] * length)}))
    return {
        **dict(zip(("uid", "session", "index"), key, strict=True)),
        **{name: draw(NAMES) for name in ("agent", "policy", "slot", "obs")},
        **{name: draw(st.none() | NAMES) for name in ("node", "parent")},
        **{"turn": draw(st.integers(0, 2)), "length": length, "invalid": draw(st.booleans()), "columns": columns},
        **{"rewards": draw(st.dictionaries(NAMES, NUMBERS)), "team_reward": draw(st.none() | NUMBERS)},
    }


KEYS = st.tuples(st.sampled_from(["s1t00000", "s1t00001", "s1t00010"]), st.integers(0, 11), st.integers(0, 11))
ROWS = st.lists(KEYS, min_size=1, max_size=12, unique=True).flatmap(lambda keys: st.tuples(*map(row, keys)))


@given(ROWS, st.data())
def test_the_tables_of_workers_make_the_table_of_all_rows(
    rows: tuple[dict[str, Any], ...], data: st.DataObject
) -> None:
    workers = data.draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows)))
    parts = [[each for each, worker in zip(rows, workers, strict=True) if worker == number] for number in range(4)]
    joined = concat([RowTable.from_rows(part, ("team",)) for part in parts if part])
    ordered = sorted(rows, key=lambda each: (each["uid"], each["session"], each["index"]))
    whole = RowTable.from_rows(ordered, ("team",))
    assert joined.to_rows() == whole.to_rows()
    assert joined.keys() == [whole.key(number) for number in range(len(rows))]
    assert joined.declared == whole.declared
    for name in ("uid", "agent", "policy", "slot", "node", "parent"):
        assert getattr(joined, name).names == getattr(whole, name).names
        np.testing.assert_array_equal(joined.codes(name), whole.codes(name))
    assert list(joined.rewards) == list(whole.rewards)
    for name, values in whole.rewards.items():
        np.testing.assert_array_equal(joined.rewards[name], values)


ROW = {"uid": "u", "session": 0, "index": 0, "turn": 0, "agent": "a", "rewards": {}, "length": 1}


def test_what_no_one_table_can_have_is_an_error() -> None:
    table = RowTable.from_rows([ROW])
    with pytest.raises(MarlError, match="two rows have the key 'u_0_0'"):
        concat([table, table])
    with pytest.raises(MarlError, match="there are no rows"):
        concat([])
    numbers, lists = ([{**ROW, "session": i, "columns": {"nll": [0.5] if i else 0.5}}] for i in range(2))
    with pytest.raises(MarlError, match="column 'nll' has one number in some rows and a list of numbers in others"):
        concat([RowTable.from_rows(numbers), RowTable.from_rows(lists)])
