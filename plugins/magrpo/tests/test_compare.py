"""The recipes' table of evaluations."""

from __future__ import annotations

import json
import os
import runpy
from pathlib import Path

import pytest

COMPARE = runpy.run_path(str(Path(__file__).parents[3] / "recipes" / "magrpo" / "compare.py"))["main"]


def evaluated(file: Path, success: float, at: int) -> Path:
    result = {"step": 0, "eval_tasks": 33, "success": success, "success_interval": [0.1, 0.25], "score": 2.5}
    result |= {"tokens_per_second": 1234.5, "answer_seconds": None, "tokens": 9000, "settings": {"run": "pipeline"}}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(result))
    os.utime(file, (at, at))
    return file


def test_a_run_has_the_row_of_its_newest_evaluation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluated(tmp_path / "evaluations" / "step_0.json", 0.5, at=1)
    file = evaluated(tmp_path / "evaluations" / "step_0_2.json", 0.125, at=2)
    assert COMPARE([str(tmp_path), str(file)]) == 0
    row = "| pipeline, step 0 | 33 | 12.5% | 10.0% to 25.0% | 2.50 | 1,234 | - | 9,000 |"
    assert capsys.readouterr().out.splitlines()[2:] == [row, row]
    assert COMPARE([str(tmp_path / "evaluations")]) == 2
    assert "has no evaluation" in capsys.readouterr().err
