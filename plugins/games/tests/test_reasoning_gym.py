"""Every generator of reasoning-gym as a task set."""

import json
import pickle
import re
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from marl_verl_games import safe_scores
from marl_verl_games.entries import decoded, encoded
from marl_verl_games.safe_scores import FORMULAS, LITERALS, formula
from marl_verl_testing import check_task

from marl_verl import Task
from marl_verl.errors import MarlError
from marl_verl.options import build

WHERE = "marl.task.options"
OPTIONS: dict[str, dict[str, Any]] = {
    "composite": {"datasets": [{"name": "chain_sum", "weight": 1.0, "config": {"min_terms": 2, "max_terms": 2}}]},
    "knight_swap": {"max_nodes": 7, "max_pieces": 2, "impossible_ratio": 1.0},
}
NO_ANSWER = ("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour")  # entries without a solution
BY_THE_CLOCK = ("knight_swap",)  # another entry when asked again
LENIENT = ("game_of_life_halting",)  # "no idea" begins with a right answer


def made(name: str, **options: Any) -> Any:
    from marl_verl_games.reasoning_gym import ReasoningGym  # seconds

    return build(ReasoningGym, {"dataset": name, **OPTIONS.get(name, {}), **options}, WHERE)


def test_every_generator_is_a_task_set() -> None:
    from reasoning_gym.factory import DATASETS

    for name in sorted(DATASETS):
        _is_a_task_set(name)


def _is_a_task_set(name: str) -> None:
    tasks = made(name)
    found = tasks.generate("train", 2, 0)
    for task in found:
        stored = Task(**json.loads(json.dumps({"id": task.id, "prompt": task.prompt, "data": task.data})))
        entry = decoded(stored.data["entry"])
        assert task.prompt.startswith(entry["question"])
        assert repr(encoded(entry)) == repr(stored.data["entry"])
        if name not in NO_ANSWER:
            assert tasks.score(stored, f"So: <answer>{entry['answer']}</answer>") == 1.0
            assert tasks.score(stored, entry["answer"]) == 1.0
        for bad in ("", "no idea", "[[1, 2], [3", "9" * 400):
            assert 0.0 <= tasks.score(stored, bad) <= (1.0 if name in LENIENT else 0.99)
    if name not in BY_THE_CLOCK:
        assert made(name).generate("train", 2, 0) == found


@pytest.mark.parametrize("name", ["chain_sum", "word_sorting", "maze", "family_relationships", "simple_integration"])
def test_the_kit_accepts_it(name: str) -> None:
    check_task(made(name), lambda task: [str(decoded(task.data["entry"])["answer"]), "7", ""], count=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "chain_sums"}, "unknown marl.task.options.dataset 'chain_sums'.*did you mean 'chain_sum'"),
        ({"dataset": "chain_sum", "min_terms": 0}, "'chain_sum' refuses these options: min_terms must be positive"),
    ],
)
def test_mistakes_in_options_are_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(MarlError, match=message) as raised:
        made(options["dataset"], **{name: value for name, value in options.items() if name != "dataset"})
    assert "\n" not in str(raised.value)


def test_a_task_set_travels_to_another_process() -> None:
    tasks = pickle.loads(pickle.dumps(made("chain_sum", min_terms=2)))
    assert (tasks.dataset, tasks.min_terms) == ("chain_sum", 2)


def test_values_that_json_lacks_come_back() -> None:
    value = {"a": (1, [2, {3: "x"}]), "b": {4, 5}, (1, 2): frozenset({"q"}), "c": None}
    assert decoded(json.loads(json.dumps(encoded(value)))) == value
    assert encoded(np.int64(3)) == 3
    assert decoded(encoded(np.array([[1, 2]]))).tolist() == [[1, 2]]
    with pytest.raises(MarlError, match="a object in the entry"):
        encoded(object())


# Scores of reasoning-gym run no text of a model: attacks on every generator that evaluates answers


EVALUATING = {
    "binary_matrix", "number_sorting", "spiral_matrix", "string_insertion", "n_queens", "countdown", "puzzle24",
    "simple_integration", "intermediate_integration", "polynomial_multiplication",
}  # fmt: skip


def test_these_are_all_modules_that_evaluate_an_answer() -> None:
    """A new version of reasoning-gym may do so elsewhere: look at its `score_answer`, and extend the lists."""
    root = Path(find_spec("reasoning_gym").origin).parent  # type: ignore[union-attr, arg-type]
    found = set()
    for path in root.rglob("*.py"):
        for function in re.findall(r"def score_answer\(.*?(?=\n    def |\nclass |\Z)", path.read_text(), re.DOTALL):
            if re.search(r"(?<!literal_)\b(eval|exec|parse_expr|sympify|S)\(", function):
                found.add(".".join(path.relative_to(root).with_suffix("").parts))
    # its own parser, a recursive descent
    assert found - {"logic.propositional_logic"} == {*LITERALS, *FORMULAS}


def scored(name: str, answer: str, seed: int = 0) -> tuple[float, Any]:
    import reasoning_gym

    entry = reasoning_gym.create_dataset(name, size=1, seed=seed)[0]
    return made(name).score(Task("x", "", {"entry": encoded(entry)}), answer), entry


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
    import reasoning_gym

    for seed in range(10):
        entry = reasoning_gym.create_dataset(name, size=1, seed=seed)[0]
        unsolved = "Integral" in entry["answer"]  # SymPy's own; as an answer it would repeat the question
        assert scored(name, entry["answer"], seed)[0] == (not unsolved), entry["answer"]


@pytest.mark.parametrize("text", ["9**9**9", "((((9**99)**99)**99)**99)**99", "9" * 5000])
def test_a_formula_that_is_too_large_is_none(text: str) -> None:
    begun = time.monotonic()
    with pytest.raises(ValueError, match="formula"):
        formula(text)
    assert time.monotonic() - begun < 1


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
