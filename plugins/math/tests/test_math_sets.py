"""Public sets of problems, each on rows in its published columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from marl_verl_math.tasks import MathTasks

from marl_verl import MarlError
from marl_verl.errors import MarlWarning

DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n1 + 1 = ?\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)
STEPS = "1 + 1 = ?\n\nLet's think step by step and output the final answer within \\boxed{}."
OLYMPIAD = {
    "id": 1606,
    "question": "Solve $x^2 = 4$.",
    "solution": ["..."],
    "final_answer": ["$2,-2$"],
    "context": None,
    "image_1": None,
    "is_multiple_answer": True,
    "unit": None,
    "answer_type": "Numerical",
    "question_type": "Open-ended",
    "subfield": "Algebra",
}
ROWS: list[tuple[str, dict[str, Any], str, str]] = [  # set, row, problem, answer
    (
        "dapo-math-17k",
        {
            "data_source": "math_dapo",
            "prompt": [{"content": DAPO, "role": "user"}],
            "ability": "MATH",
            "reward_model": {"ground_truth": "2", "style": "rule-lighteval/MATH_v2"},
            "extra_info": {"index": "9a9b6eb4"},
        },
        "1 + 1 = ?",
        "2",
    ),
    (
        "dapo-filter",
        {
            "prompt": [{"content": STEPS, "role": "user"}],
            "ability": "MATH",
            "reward_model": {"ground_truth": "2", "style": "rule"},
        },
        "1 + 1 = ?",
        "2",
    ),
    ("dapo-math-17k", {"prompt": STEPS, "reward_model": {"ground_truth": "2"}}, "1 + 1 = ?", "2"),
    ("polaris-53k", {"problem": "Half?", "answer": "\\frac{1}{2}", "difficulty": "3/8"}, "Half?", "\\frac{1}{2}"),
    (
        "math",
        {"problem": "Half?", "level": "Level 2", "type": "Algebra", "solution": "It is $\\boxed{\\frac{1}{2}}$."},
        "Half?",
        "\\frac{1}{2}",
    ),
    ("gsm8k", {"question": "Eggs?", "answer": "2 * 3 = <<2*3=6>>6.\n#### 1,006"}, "Eggs?", "1,006"),
    (
        "aime24",
        {"id": 60, "problem": "Walk?", "solution": "so \\boxed{204}", "answer": "204", "url": "", "year": "2024"},
        "Walk?",
        "204",
    ),
    ("aime24", {"ID": "2024-I-1", "Problem": "Walk?", "Solution": "s", "Answer": 204}, "Walk?", "204"),
    ("aime25", {"problem": "Bases?", "answer": "70", "id": "0"}, "Bases?", "70"),
    (
        "math-500",
        {
            "problem": "Polar?",
            "solution": "s",
            "answer": "\\left( 3, \\frac{\\pi}{2} \\right)",
            "subject": "Precalculus",
            "level": 2,
            "unique_id": "test/precalculus/807.json",
        },
        "Polar?",
        "\\left( 3, \\frac{\\pi}{2} \\right)",
    ),
    ("amc23", {"id": 0, "question": "Cities?", "answer": "27.0", "url": ""}, "Cities?", "27.0"),
    ("minerva", {"question": "Each layer?", "answer": "3.0e-7"}, "Each layer?", "3.0e-7"),
    ("olympiadbench", OLYMPIAD, "Solve $x^2 = 4$.", "2,-2"),
    (
        "olympiadbench",
        {**OLYMPIAD, "context": "Let x be real.", "final_answer": ["$2$", "$-2$"]},
        "Let x be real.\n\nSolve $x^2 = 4$.",
        "2, -2",
    ),
]


@pytest.mark.parametrize(("name", "row", "problem", "answer"), ROWS)
def test_a_row_of_each_set(tmp_path: Path, name: str, row: dict[str, Any], problem: str, answer: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row))
    (task,) = MathTasks(train=name).read(path, "train")
    assert (task.prompt, task.data) == (problem, {"answer": answer})


def test_a_problem_has_one_id_in_every_set(tmp_path: Path) -> None:
    ids = set()
    for number, (name, row, _, _) in enumerate(ROWS[:2]):
        path = tmp_path / f"{number}.jsonl"
        path.write_text(json.dumps(row))
        ids |= {task.id for task in MathTasks(train=name).read(path, "train")}
    assert len(ids) == 1  # so that a test problem in a training file is found


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("dapo-math-17k", {"prompt": "?", "reward_model": {}}, "field 'reward_model' has no field 'ground_truth'"),
        ("dapo-math-17k", {"prompt": [], "reward_model": {"ground_truth": 1}}, "or have one message of the user"),
        ("dapo-math-17k", {"prompt": [{"role": "user"}], "reward_model": {}}, "field 'prompt' has no field 'content'"),
        ("olympiadbench", {"question": "?", "final_answer": []}, "field 'final_answer' must be a text, or a list"),
    ],
)
def test_a_row_of_another_form(tmp_path: Path, name: str, row: dict[str, Any], message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row))
    with pytest.raises(MarlError) as error:
        MathTasks(test=name).read(path, "test")
    assert str(path) in str(error.value)
    assert message in str(error.value)


def test_problems_with_images_and_proofs_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    image = {**OLYMPIAD, "question": "Figure?", "image_1": {"bytes": ""}}
    proof = {"question": "Prove it.", "final_answer": None, "question_type": "Theorem proof"}
    path.write_text("\n".join(map(json.dumps, [OLYMPIAD, image, proof])))
    with pytest.warns(MarlWarning, match="1 tasks; rows left out: 1 with images, 1 proofs"):
        assert len(MathTasks(test="olympiadbench").read(path, "test")) == 1


def test_a_solution_without_a_marked_answer_is_no_answer(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    solutions = ["so $\\boxed 2$.", "It is two.", "2\n#### 1,000"]
    path.write_text("\n".join(json.dumps({"problem": text, "solution": text}) for text in solutions))
    with pytest.warns(MarlWarning, match="2 tasks; rows left out: 1 without a marked answer"):
        tasks = MathTasks(test="math").read(path, "test")
    assert [task.data["answer"] for task in tasks] == ["2", "1,000"]


@pytest.mark.parametrize("answer", [None, "", " ", ["4"], {"x": 1}, True, float("nan")])
def test_a_task_without_an_answer_is_refused(tmp_path: Path, answer: Any) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"id": "a", "prompt": "2 + 2?", "data": {"answer": answer}}))
    with pytest.raises(MarlError, match="task 'a' has no answer"):
        MathTasks().read(path, "train")
    path.write_text(json.dumps({"question": "2 + 2?", "answer": answer}))
    with pytest.raises(MarlError, match="field 'answer'"):
        MathTasks(train="gsm8k").read(path, "train")


@pytest.mark.parametrize(
    ("answer", "read"), [("2 + 2 = 4\n#### 4", "4"), ("so $\\boxed{4}$", "4"), (4, "4"), (" 4 ", "4")]
)
def test_an_answer_of_another_column(tmp_path: Path, answer: Any, read: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"query": "2 + 2?", "target": answer}))
    (task,) = MathTasks(fields={"prompt": "query", "answer": "target"}).read(path, "train")
    assert (task.prompt, task.data) == ("2 + 2?", {"answer": read})
    verl = {"data_source": "math", "prompt": [{"role": "user", "content": "2 + 2?"}]}
    path.write_text(json.dumps({**verl, "reward_model": {"ground_truth": answer}, "extra_info": {"index": 1}}))
    with pytest.raises(MarlError, match=r"fields maps other columns, such as \{answer: reward_model\.ground_truth\}"):
        MathTasks().read(path, "train")
    fields = {"prompt": "prompt", "answer": "reward_model.ground_truth"}
    (task,) = MathTasks(fields=fields).read(path, "train")
    assert (task.prompt, task.data) == ("2 + 2?", {"answer": read})
