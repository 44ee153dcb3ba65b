"""Task set `verl` and workflow `single`: rows of verl's preprocessing scripts, their errors, and verl's own scores."""

import ast
import asyncio
import importlib.util
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from marl_verl_scripts.verl_rows import EVALUATED, PROGRAMS, VerlRows

from marl_verl.algo.sampling.context import judged
from marl_verl.errors import MarlError
from marl_verl.tasks.base import Task, read_tasks, write_tasks

USER = {"role": "user", "content": "2 + 2?"}
ROW: dict[str, Any] = {
    **{"data_source": "openai/gsm8k", "prompt": [USER], "ability": "math"},
    **{"reward_model": {"style": "rule", "ground_truth": "4"}, "extra_info": {"split": "train", "index": 3}},
}


def write(path: Path, *rows: Any) -> str:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def read(*files: str, **options: Any) -> list[Task]:
    return VerlRows(train_files=list(files), **options).generate("train", 1, 0)


@pytest.mark.parametrize("name", ["t.parquet", "t.jsonl", "t.json"])
def test_rows_are_tasks_of_any_number_of_files(tmp_path: Path, name: str) -> None:
    one = write(tmp_path / f"one-{name}", ROW)
    two = write(tmp_path / f"two-{name}", {**ROW, "extra_info": {"index": 9}}, {**ROW, "extra_info": {"x": 1}})
    tasks = read(one, two)
    assert [task.prompt for task in tasks] == ["2 + 2?"] * 3
    ids = ["openai/gsm8k-train-3", "openai/gsm8k-9", f"openai/gsm8k-two-{name.split('.')[0]}-2"]
    assert [task.id for task in tasks] == ids
    assert tasks[0].data == {key: ROW[key] for key in ("data_source", "reward_model", "extra_info")}
    write_tasks(tasks, tmp_path / "copy.jsonl")
    assert read_tasks(tmp_path / "copy.jsonl") == tasks  # as the run's own copy


def changed(**columns: Any) -> dict[str, Any]:
    return {key: value for key, value in {**ROW, **columns}.items() if value is not ...}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (changed(prompt=[]), ": Expected `array` of length >= 1 - at `$.prompt`. Write it as verl's"),
        (changed(images=[{"bytes": "x"}]), "has images: agents see text only"),
        (changed(data_source=EVALUATED[0]), "verl evaluates a model's text as Python for 'numina_aops_forum'. Give"),
        (changed(data_source="apps"), "'reward_model.ground_truth' must have lists 'inputs' and 'outputs'"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, row: Any, message: str) -> None:
    file = write(tmp_path / "t.jsonl", ROW, row)
    with pytest.raises(MarlError) as error:
        read(file)
    assert str(error.value).startswith(f"train_files '{file}', row 2")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


RIGHT = {
    **dict.fromkeys(("openai/gsm8k", "aime2024", "math_dapo", "lighteval/MATH", "HuggingFaceH4/MATH-500"), "-4.5"),
    **dict.fromkeys(("math", "math_dapo_reasoning"), r"\frac{1}{2}"),
    "searchR1_nq": {"target": ["Paris", "paris"]},
    "searchR1_musique": {"target": "Paris"},
}
WRONG = [4, ["4"], {"a": 4}, "", "4 apples", "1,234", "5 + 5 = 10\n#### 10"]


@pytest.mark.parametrize(
    ("source", "truth", "right"),
    [*((*case, True) for case in RIGHT.items()), *(("openai/gsm8k", truth, False) for truth in WRONG)],
)
def test_the_reference_is_the_ground_truth_as_verl_scores_it(source: str, truth: Any, right: bool) -> None:
    task = Task("t", "p", {"data_source": source, "reward_model": {"ground_truth": truth}, "extra_info": {}})
    assert asyncio.run(judged(VerlRows(), task, VerlRows().reference(task)))[1] == right


def test_a_reward_function_may_read_any_ground_truth(tmp_path: Path) -> None:
    own = write(tmp_path / "t.jsonl", changed(data_source="mine", reward_model={"ground_truth": ["4"]}))
    assert read(own, own_score=False)  # what a reward function of the user reads


def score(answer: Any, source: str = "openai/gsm8k", truth: Any = "4") -> tuple[float, bool]:
    data = {"data_source": source, "reward_model": {"ground_truth": truth}, "extra_info": {}}
    return asyncio.run(judged(VerlRows(), Task("t", "p", data), answer))


def test_verls_functions_score_by_data_source() -> None:
    assert score("so it is #### 4") == (1.0, True)
    assert score("so it is 4") == (0.0, False)
    assert score({"text": "#### 4", "rewards": {"solver": 0.0}}) == (1.0, True)
    assert score(r"\boxed{\frac{1}{2}}", "lighteval/MATH", r"\frac12") == (1.0, True)
    assert score("Answer: 5", "math_dapo") == (-1.0, False)  # of {"score": -1.0, "acc": False, "pred": "5"}
    assert score("Answer: 4", "aime2025") == (1.0, True)
    assert score("<answer>Paris</answer>", "searchR1_nq", {"target": ["Paris"]}) == (1.0, True)
    with pytest.raises(MarlError, match="verl has no score of 'mine'"):
        score("4", "mine")


SCORES = Path(importlib.util.find_spec("verl").submodule_search_locations[0]) / "utils" / "reward_score"  # type: ignore


def test_verls_data_sources_are_those_of_the_table() -> None:
    """verl's `default_compute_score` has moved or changed if this fails: adapt the table of `verl_rows.py`."""
    (function,) = [
        node
        for node in ast.parse((SCORES / "__init__.py").read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == "default_compute_score"
    ]
    tests = [node.test for node in ast.walk(function) if isinstance(node, ast.If)]
    about = [test for test in tests if "data_source" in ast.dump(test)]
    named = {each.value for test in about for each in ast.walk(test) if isinstance(each, ast.Constant)}
    compared = {*RIGHT, "aime", "DigitalLearningGmbH/MATH-lighteval"} - {"aime2024"}
    assert {name for name in named if "searchR1_" not in name or name in RIGHT} == {*compared, *EVALUATED, *PROGRAMS}


@pytest.mark.parametrize("name", ["math_reward", "search_r1_like_qa_em"])
def test_what_scores_by_comparing_evaluates_nothing(name: str) -> None:
    nodes = list(ast.walk(ast.parse((SCORES / f"{name}.py").read_text())))
    called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not called & {"eval", "exec", "compile", "parse_expr", "__import__"}
    imported = {alias.name for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names}
    assert imported <= {"re", "random", "string", "Optional", "annotations"}
