"""Whether a row's ground truth can be matched by verl's own score: the right answer must score 1.

Uses verl internals: the files of `verl.utils.reward_score` that score by comparing texts, loaded without verl.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from marl_verl.errors import shown

WRITTEN = {"gsm8k": "#### {}", "math_reward": "\\boxed{{{}}}", "math_dapo": "Answer: {}"}
"""File of verl -> how its score wants an answer to be written."""
SEARCH = "searchR1_"


def wrong_truth(source: str, truth: Any) -> str | None:
    """Why no answer would be right by verl's comparison of texts; None if one would."""
    key = "'reward_model.ground_truth'"
    if source.startswith(SEARCH):
        targets = truth.get("target") if isinstance(truth, Mapping) else None
        texts = targets if isinstance(targets, list) else [targets]
        right = texts and all(isinstance(text, str) and text.strip() for text in texts)
        return None if right else f"{key} must be {{target: a text, or a list of texts}}, got {shown(truth)}"
    if not isinstance(truth, str) or not truth.strip():
        return f"{key} must be a text, with which verl compares the text of an answer, got {shown(truth)}"
    name = {"openai/gsm8k": "gsm8k"}.get(source, "math_reward" if "MATH" in source else "math_dapo")
    answer = WRITTEN[name].format(truth)
    if _score(name, answer, truth) >= 1:
        return None
    message = f"verl's score of '{source}' does not find it in the answer {shown(answer)}"
    return f"{key} is {shown(truth)}, and {message}. Correct or remove the row."


def _score(name: str, answer: str, truth: str) -> float:
    with contextlib.redirect_stdout(io.StringIO()):  # verl prints what it cannot parse
        score = _file(name).compute_score(answer, truth)
    return float(score["score"] if isinstance(score, Mapping) else score)


@functools.cache
def _file(name: str) -> ModuleType:
    package = importlib.util.find_spec("verl")
    path = Path(str(package and package.origin)).parent / "utils" / "reward_score" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"marl_verl_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
