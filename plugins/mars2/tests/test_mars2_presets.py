"""The presets, and the advantages of the paper's baselines on the same rows."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_mars2.algorithm import Shaped, shaped
from marl_verl_testing.rows import Rows, algorithm, row, trees

from marl_verl.algo.advantage import RowTable
from tests.batches import compute


def test_the_plus_is_three_changes() -> None:
    plain, plus = algorithm("mars2").options(), algorithm("mars2-plus").options()
    overlong = {"L": 32768, "C": 2048, "factor": 1.0}
    # the third is in the loss
    assert plus == {**plain, "loss": "gspo-tis", "advantage": {**plain["advantage"], "overlong": overlong}}


# MARS2's shaping against the paper's formula, and MARS2+'s penalty


@given(rows=trees(), gamma=st.sampled_from([0.0, 0.3, 1.0]), lam=st.sampled_from([0.0, 0.5, 1.0]))
@settings(deadline=None, max_examples=20)
def test_shaping_is_the_papers_formula(rows: Rows, gamma: float, lam: float) -> None:
    table = RowTable.from_rows(rows)
    found = Shaped(gamma=gamma, lam=lam).compute(table, table.rewards["team"])
    np.testing.assert_allclose(found, shaped(rows, gamma, lam), atol=1e-12)


def test_the_overlong_penalty_grows_over_the_last_tokens_and_comes_after_shaping() -> None:
    lengths = [1, 12, 13, 16, 20, 25]
    rows = [{**row("q", 0, i, 0, "a", team=1.0), "node": f"n{i}", "length": n} for i, n in enumerate(lengths)]
    result = compute(algorithm("mars2-plus", overlong={"L": 20, "C": 8}), rows)
    np.testing.assert_allclose(result.ret, 1.0 + np.array([0, 0, -1 / 8, -4 / 8, -1, -1]))
    assert [name for name, _ in result.stages] == ["returns: shaped", "overlong"]
    np.testing.assert_allclose(result.stages[0][1], 1.0)  # all equal: shaping finds nothing to compare
