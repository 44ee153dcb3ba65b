"""Every generator of reasoning-gym as a task set."""

import ast
import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from marl_verl_games.reasoning_gym import ARITHMETIC, LITERALS, REMOVED
from marl_verl_testing import check_task

from marl_verl import Task
from marl_verl.errors import MarlError
from marl_verl.options import build

OPTIONS: dict[str, dict[str, Any]] = {
    "composite": {"datasets": [{"name": "chain_sum", "weight": 1.0, "config": {"min_terms": 2, "max_terms": 2}}]},
    "knight_swap": {"max_nodes": 7, "max_pieces": 2, "impossible_ratio": 1.0},
}
NO_ANSWER = ("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour")  # entries without a solution
BY_THE_CLOCK = ("knight_swap",)  # another entry when asked again
LENIENT = ("game_of_life_halting",)  # "no idea" begins with a right answer


def made(name: str, **options: Any) -> Any:
    from marl_verl_games.reasoning_gym import ReasoningGym  # seconds

    return build(ReasoningGym, {"dataset": name, "config": {**OPTIONS.get(name, {}), **options}}, "marl.task.options")


def test_every_generator_is_a_task_set() -> None:
    from reasoning_gym.factory import DATASETS

    made("chain_sum")  # which removes the unsafe ones
    for name in sorted(DATASETS):
        tasks = made(name)
        generated = tasks.generate("train", 2, 0)
        for task in generated:
            stored = Task(**json.loads(json.dumps({"id": task.id, "prompt": task.prompt, "data": task.data})))
            entry = ast.literal_eval(stored.data["entry"])
            assert task.prompt.startswith(entry["question"])
            if name not in NO_ANSWER:
                assert tasks.score(stored, f"So: <answer>{entry['answer']}</answer>") == 1.0
                assert tasks.score(stored, entry["answer"]) == 1.0
            for bad in ("", "no idea", "[[1, 2], [3", "9" * 400):
                assert 0.0 <= tasks.score(stored, bad) <= (1.0 if name in LENIENT else 0.99)
        if name not in BY_THE_CLOCK:
            assert made(name).generate("train", 2, 0) == generated


@pytest.mark.parametrize("name", ["chain_sum", "word_sorting", "maze", "family_relationships", "countdown"])
def test_the_kit_accepts_it(name: str) -> None:
    check_task(made(name), lambda task: [str(ast.literal_eval(task.data["entry"])["answer"]), "7", ""], count=3)


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("chain_sums", {}, "unknown marl.task.options.dataset 'chain_sums'.*did you mean 'chain_sum'"),
        ("composite", {"datasets": [{"name": "simple_integration", "weight": 1, "config": {}}]}, "not registered"),
        ("chain_sum", {"min_terms": 0}, "'chain_sum' refuses marl.task.options.config: min_terms must be positive"),
    ],
)
def test_mistakes_in_options_are_one_line(name: str, config: dict[str, Any], message: str) -> None:
    with pytest.raises(MarlError, match=message) as raised:
        made(name, **config)
    assert "\n" not in str(raised.value)


# Scores of reasoning-gym run no text of a model: attacks on every generator that evaluates answers


EVALUATING = [module.rpartition(".")[2] for module in (*LITERALS, *ARITHMETIC)]


def test_these_are_all_modules_that_evaluate_an_answer() -> None:
    """A new version of reasoning-gym may do so elsewhere: look at its `score_answer`, and extend the lists."""
    root = Path(find_spec("reasoning_gym").origin).parent  # type: ignore[union-attr, arg-type]
    found = set()
    for path in root.rglob("*.py"):
        for function in re.findall(r"def score_answer\(.*?(?=\n    def |\nclass |\Z)", path.read_text(), re.DOTALL):
            if re.search(r"(?<!literal_)\b(eval|exec|parse_expr|sympify|S)\(", function):
                found.add(".".join(path.relative_to(root).with_suffix("").parts))
    # its own parser, a recursive descent
    assert found - {"logic.propositional_logic"} == {*LITERALS, *ARITHMETIC, *(f"algebra.{name}" for name in REMOVED)}


def scored(name: str, answer: str, seed: int = 0) -> float:
    import reasoning_gym

    entry = reasoning_gym.create_dataset(name, size=1, seed=seed)[0]
    return float(made(name).score(Task("x", "", {"entry": repr(entry)}), answer))


@pytest.mark.parametrize("name", EVALUATING)
def test_an_answer_is_not_run(name: str, tmp_path: Path) -> None:
    file = tmp_path / "run"
    call = f"open('{file}', 'w')"
    for attack in (
        call, f"[{call}]", f"__import__('pathlib').Path('{file}').touch()", f"[].__class__.__base__ or {call}",
        f"Symbol.__init__.__globals__['__builtins__']['open']('{file}', 'w')", f"x + {call}", f"S(\"{call}\")",
        "9**9**9", "9" * 5000,
    ):  # fmt: skip
        assert scored(name, attack) < 0.1
    assert not file.exists()


@pytest.mark.parametrize("name", EVALUATING)
def test_right_answers_are_still_right(name: str) -> None:
    import reasoning_gym

    for seed in range(10):
        entry = reasoning_gym.create_dataset(name, size=1, seed=seed)[0]
        assert scored(name, entry["answer"], seed) == 1.0, entry["answer"]
