"""Scores of reasoning-gym run no text of a model: attacks on every generator that evaluates answers."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
import reasoning_gym
from marl_verl_games import safe_scores
from marl_verl_games.entries import encoded
from marl_verl_games.reasoning_gym import ReasoningGym
from marl_verl_games.safe_scores import FORMULAS, LITERALS, formula

from marl_verl import Task

EVALUATING = {
    "binary_matrix", "number_sorting", "spiral_matrix", "string_insertion", "n_queens", "countdown", "puzzle24",
    "simple_integration", "intermediate_integration", "polynomial_multiplication",
}  # fmt: skip


def test_these_are_all_modules_that_evaluate_an_answer() -> None:
    """A new version of reasoning-gym may do so elsewhere: look at its `score_answer`, and extend the lists."""
    root = Path(reasoning_gym.__file__).parent
    found = set()
    for path in root.rglob("*.py"):
        for function in re.findall(r"def score_answer\(.*?(?=\n    def |\nclass |\Z)", path.read_text(), re.DOTALL):
            if re.search(r"(?<!literal_)\b(eval|exec|parse_expr|sympify|S)\(", function):
                found.add(".".join(path.relative_to(root).with_suffix("").parts))
    # its own parser, a recursive descent
    assert found - {"logic.propositional_logic"} == {*LITERALS, *FORMULAS}


def scored(name: str, answer: str, seed: int = 0) -> tuple[float, Any]:
    entry = reasoning_gym.create_dataset(name, size=1, seed=seed)[0]
    tasks = ReasoningGym.for_options({"dataset": name})(dataset=name)  # type: ignore[call-arg]
    return tasks.score(Task("x", "", {"entry": encoded(entry)}), answer), entry


@pytest.mark.parametrize("name", sorted(EVALUATING))
def test_an_answer_is_not_run(name: str, tmp_path: Path) -> None:
    file = tmp_path / "run"
    call = f"open('{file}', 'w')"
    for attack in (
        call, f"[{call}]", f"__import__('pathlib').Path('{file}').touch()", f"[].__class__.__base__ or {call}",
        f"Symbol.__init__.__globals__['__builtins__']['open']('{file}', 'w')", f"x + {call}", f"S(\"{call}\")",
    ):  # fmt: skip
        assert scored(name, attack)[0] < 0.1
    assert not file.exists()


@pytest.mark.parametrize("name", sorted(EVALUATING))
def test_right_answers_are_still_right(name: str) -> None:
    for seed in range(10):
        entry = reasoning_gym.create_dataset(name, size=1, seed=seed)[0]
        unsolved = "Integral" in entry["answer"]  # SymPy's own; as an answer it would repeat the question
        assert scored(name, entry["answer"], seed)[0] == (not unsolved), entry["answer"]


@pytest.mark.parametrize(
    "text", ["9**9**9", "9**(9**9)", "9**999", "((((9**99)**99)**99)**99)**99", "x**x**x", "2^9^9", "9" * 5000]
)
def test_a_formula_that_is_too_large_is_none(text: str) -> None:
    begun = time.monotonic()
    with pytest.raises(ValueError, match="formula"):
        formula(text)
    assert time.monotonic() - begun < 1


def test_formulas_are_read() -> None:
    assert formula("(3 + 5)*2/4 - 1") == 3
    assert str(formula("x**2*(x - 1)**3 + sqrt(2)*sin(x)/x**(1/2)")) == "x**2*(x - 1)**3 + sqrt(2)*sin(x)/sqrt(x)"


def test_a_list_is_read_as_a_literal() -> None:
    _, entry = scored("spiral_matrix", "")
    assert scored("spiral_matrix", str(entry["answer"].split()).replace("'", ""))[0] == 0.1


def test_a_formula_that_takes_too_long_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    _, entry = scored("simple_integration", "1")
    assert scored("simple_integration", entry["answer"])[0] == 1.0  # starts the process
    found: list[Any] = []
    call = safe_scores._SIMPLIFY.call

    def seen(*given: Any, seconds: float) -> Any:
        found.append(call(*given, seconds=seconds))
        return found[-1]

    monkeypatch.setattr(safe_scores, "SECONDS", 1.0)
    monkeypatch.setattr(safe_scores._SIMPLIFY, "call", seen)
    x = entry["metadata"]["variable"]
    terms = (f"sin({n}*{x})*cos({n + 1}*{x})*tan({x}/{n})/(sqrt({x}+{n})+exp({x}*{n}))" for n in range(2, 20))
    assert scored("simple_integration", "+".join(terms))[0] < 0.1
    assert found == [None]  # stopped at the limit
    monkeypatch.setattr(safe_scores, "SECONDS", 60.0)
    assert scored("simple_integration", entry["answer"])[0] == 1.0  # the next one works
    assert found == [None, True]
