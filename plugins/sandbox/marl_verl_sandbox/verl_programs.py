"""verl's score of programs (data sources codecontests, apps, codeforces, taco) in our own sandbox.

The same functions of verl run, with this sandbox in place of a request to a Sandbox Fusion server: verl extracts the
program, makes the call of `fn_name`, compares the output, and counts the first ten tests. 10 s a test, as in verl.

Uses verl internals: `sandbox_fusion.compute_score`, and what it calls in `sandbox_fusion.utils`.
"""

import contextlib
import json
import types
from collections.abc import Callable, Mapping
from typing import Any

from marl_verl.errors import shown
from marl_verl_sandbox import Limits, SandboxError, current

FORM = "'reward_model.ground_truth' must have lists 'inputs' and 'outputs' of the same length"


def wrong_truth(truth: Any) -> str | None:
    """Why a row's ground truth has no tests that can be run here; None if it has."""
    tests = truth
    with contextlib.suppress(ValueError, RecursionError):
        tests = json.loads(truth) if isinstance(truth, str) else truth
    tests = tests if isinstance(tests, Mapping) else {}
    if tests.get("assert_case"):
        return f"{FORM}, not 'assert_case', which verl appends to the program: one that ends early would pass"
    inputs, outputs = tests.get("inputs"), tests.get("outputs")
    right = isinstance(inputs, list) and isinstance(outputs, list) and 0 < len(inputs) == len(outputs)
    return None if right else f"{FORM}, got {shown(truth)}"


def score_program(text: str, truth: Any, megabytes: int) -> float:
    """Share of the first ten tests that the program in a text passes, 0 to 1. SandboxError if one could not be run."""
    from verl.utils.reward_score import sandbox_fusion
    from verl.utils.reward_score.sandbox_fusion import utils

    failed: list[SandboxError] = []

    def run(
        code: str, stdin: str | None, run_timeout: int, memory_limit_mb: int, **_: Any
    ) -> tuple[dict[str, Any] | None, str | None]:
        """As verl's `call_sandbox_api`, which is called by keywords: (a server's answer, error)."""
        try:
            ended, out, err = current().run(code, stdin or "", Limits(run_timeout, memory_limit_mb))
        except SandboxError as error:
            failed.append(error)
            return None, str(error)
        status = "TimeLimitExceeded" if ended is None else "Finished"
        result = {"status": status, "return_code": ended, "stdout": out, "stderr": err}
        return {"status": "Failed" if ended is None or ended else "Success", "run_result": result}, None

    case = _with(utils._process_single_case, call_sandbox_api=run)
    check = _with(utils.check_correctness, _process_single_case=case)
    share, _ = _with(sandbox_fusion.compute_score, check_correctness=check)("", None, megabytes, text, truth, True)
    if failed:
        raise failed[0]
    return float(share)


def _with(function: Any, **names: Any) -> Callable[..., Any]:
    """A function of verl with other values for some names of its module, which stays as it is."""
    if missing := [name for name in names if name not in function.__globals__]:
        raise ImportError(f"verl's {function.__module__} has no {missing[0]}: its code score has changed")
    return types.FunctionType(
        function.__code__, {**function.__globals__, **names}, function.__name__, function.__defaults__
    )
