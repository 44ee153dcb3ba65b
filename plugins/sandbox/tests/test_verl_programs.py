"""verl's code rows: scored in our sandbox as verl scores them with a Sandbox Fusion server."""

from __future__ import annotations

import json
from typing import Any

import marl_verl_sandbox as sandbox
import pytest
from marl_verl_sandbox import SandboxError
from marl_verl_sandbox.verl_programs import _with, score_program
from verl.utils.reward_score import sandbox_fusion
from verl.utils.reward_score.sandbox_fusion import utils

STREAMS = {"inputs": ["1 2\n", "3 4\n", "0 0\n", "5 5\n"], "outputs": ["3\n", "7\n", "0\n", "10\n"]}
CALLS = {"fn_name": "plus", "inputs": ["1\n2", "[1]\n[2]", '"a"\n"b"'], "outputs": ["3", "[1, 2]", "ab"]}
METHOD = {"fn_name": "plus", "inputs": ["1\n2"], "outputs": ["3"]}


def fenced(code: str) -> str:
    return f"So:\n```python\n{code}\n```"


ADD = "a, b = map(int, input().split())\nprint(a + b)"


@pytest.mark.parametrize(
    ("text", "tests", "expected"),
    [
        (fenced(ADD), STREAMS, 1.0),
        (fenced("a, b = map(int, input().split())\nprint(a * b if a == 0 else 3)"), STREAMS, 0.5),
        (fenced(f"{ADD}\nprint()\nprint()"), STREAMS, 1.0),  # line breaks at the end do not count
        (fenced(ADD.replace("print(a + b)", "print(a + b, '')")), STREAMS, 0.0),  # a space at the end does
        (fenced(f"{ADD}\nraise SystemExit(1)"), STREAMS, 0.0),
        (fenced("def ("), STREAMS, 0.0),
        ("```\n" + ADD + "\n```", STREAMS, 1.0),
        (f"{fenced('print(1)')} no: {fenced(ADD)}", STREAMS, 1.0),  # the last block
        (ADD, STREAMS, 0.0),  # no block
        ("", STREAMS, 0.0),
        (fenced("def plus(a, b): return a + b"), CALLS, 1.0),
        (fenced("def plus(a: List[int], b): return plus2(a, b)\ndef plus2(a, b): return b + a"), CALLS, 1 / 3),
        (fenced("class Solution:\n    def plus(self, a, b): return a + b"), METHOD, 1.0),
        (fenced("def other(a, b): return a + b"), METHOD, 0.0),
        (
            fenced("import os\nprint(3, flush=True)\nos._exit(0)"),
            CALLS,
            1 / 3,
        ),  # it can print one answer, and does not know others
    ],
)
def test_a_score_by_hand(text: str, tests: dict[str, Any], expected: float) -> None:
    assert score_program(text, json.dumps(tests), 512) == pytest.approx(expected)
    assert sandbox.used()


def test_a_sandbox_that_fails_is_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise SandboxError("no room")

    monkeypatch.setattr(sandbox.current(), "run", broken)
    with pytest.raises(SandboxError, match="no room"):
        score_program(fenced(ADD), STREAMS, 512)


def test_verls_functions_are_where_they_were() -> None:
    """verl's code score has moved or changed if this fails: adapt `verl_programs.py`."""
    before = utils._process_single_case.__globals__["call_sandbox_api"]
    _with(utils._process_single_case, call_sandbox_api=print)
    _with(utils.check_correctness, _process_single_case=print)
    _with(sandbox_fusion.compute_score, check_correctness=print)
    assert utils.call_sandbox_api is before  # verl itself is not changed
    with pytest.raises(ImportError, match=r"verl's .*sandbox_fusion has no check_it: its code score has changed"):
        _with(sandbox_fusion.compute_score, check_it=print)
