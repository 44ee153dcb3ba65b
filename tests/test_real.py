"""What tests of the real stack read from a run's files: `marl_verl_testing.real`."""

from __future__ import annotations

from pathlib import Path

import pytest
from marl_verl_testing.real import Finished

METRICS = """{"step": 0, "validation/success": 0.25}
{"step": 1, "train/success": 0.5, "policy/asker/grad_norm": 1.0}
{"step": 2, "train/success": 0.75}
"""


@pytest.fixture
def run(tmp_path: Path) -> Finished:
    (tmp_path / "metrics.jsonl").write_text(METRICS)
    return Finished(tmp_path, 0, "")


def test_lines_are_those_with_the_metric(run: Finished) -> None:
    assert [line["step"] for line in run.lines("train/success")] == [1, 2]
    assert [line["step"] for line in run.lines("policy/asker/grad_norm")] == [1]


def test_a_metric_that_no_line_has_is_an_error_that_names_it_and_the_nearest(run: Finished) -> None:
    with pytest.raises(AssertionError, match=r"has the metric 'train/succes': did you mean 'train/success'\?"):
        run.lines("train/succes")


def test_a_run_without_metrics_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(AssertionError, match="has the metric 'train/success': none is available"):
        Finished(tmp_path, 0, "").lines("train/success")
