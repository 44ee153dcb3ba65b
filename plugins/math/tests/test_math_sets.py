"""Public sets of problems, each on rows in its published columns."""

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from marl_verl_math import matcher
from marl_verl_math.answers import boxed, stated
from marl_verl_math.matcher import same
from marl_verl_math.tasks import MathTasks

from marl_verl import MarlError, Task
from marl_verl.errors import MarlWarning

DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n1 + 1 = ?\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)
STEPS = "1 + 1 = ?\n\nLet's think step by step and output the final answer within \\boxed{}."
OLYMPIAD = {"question": "Solve $x^2 = 4$.", "final_answer": ["$2,-2$"], "image_1": None, "question_type": "Open-ended"}
TWO = {"ground_truth": "2", "style": "rule-lighteval/MATH_v2"}
POLAR = "\\left( 3, \\frac{\\pi}{2} \\right)"
ROWS: list[tuple[str, dict[str, Any], str, str]] = [  # set, row, problem, answer
    ("dapo-math-17k", {"prompt": [{"content": DAPO, "role": "user"}], "reward_model": TWO}, "1 + 1 = ?", "2"),
    ("dapo-filter", {"prompt": STEPS, "reward_model": {"ground_truth": "2"}}, "1 + 1 = ?", "2"),
    ("polaris-53k", {"problem": "Half?", "answer": "\\frac{1}{2}", "difficulty": "3/8"}, "Half?", "\\frac{1}{2}"),
    ("math", {"problem": "Half?", "level": "Level 2", "solution": "$\\boxed{\\frac{1}{2}}$."}, "Half?", "\\frac{1}{2}"),
    ("gsm8k", {"question": "Eggs?", "answer": "2 * 3 = <<2*3=6>>6.\n#### 1,006"}, "Eggs?", "1,006"),
    ("aime24", {"ID": "2024-I-1", "Problem": "Walk?", "Solution": "so \\boxed{204}", "Answer": 204}, "Walk?", "204"),
    ("aime25", {"problem": "Bases?", "answer": "70", "id": "0"}, "Bases?", "70"),
    ("math-500", {"problem": "Polar?", "solution": "s", "answer": POLAR, "level": 2}, "Polar?", POLAR),
    ("amc23", {"id": 0, "question": "Cities?", "answer": "27.0", "url": ""}, "Cities?", "27.0"),
    ("minerva", {"question": "Each layer?", "answer": "3.0e-7"}, "Each layer?", "3.0e-7"),
    ("olympiadbench", {**OLYMPIAD, "context": "Let x be real."}, "Let x be real.\n\nSolve $x^2 = 4$.", "2,-2"),
    ("olympiadbench", {**OLYMPIAD, "context": None, "final_answer": ["$2$", "$-2$"]}, "Solve $x^2 = 4$.", "2, -2"),
]


@pytest.mark.parametrize(("name", "row", "problem", "answer"), ROWS)
def test_a_row_of_each_set(tmp_path: Path, name: str, row: dict[str, Any], problem: str, answer: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row))
    (task,) = MathTasks(train=name).read(path, "train")
    assert (task.prompt, task.data) == (problem, {"answer": answer})


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


@pytest.mark.parametrize("answer", ["", True])
def test_a_task_without_an_answer_is_refused(tmp_path: Path, answer: Any) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"id": "a", "prompt": "2 + 2?", "data": {"answer": answer}}))
    with pytest.raises(MarlError, match="the data of task 'a': field 'answer' must be a text"):
        MathTasks().read(path, "train")
    path.write_text(json.dumps({"question": "2 + 2?", "answer": answer}))
    with pytest.raises(MarlError, match="field 'answer'"):
        MathTasks(train="gsm8k").read(path, "train")


# Final answers: extracted, compared by math-verify, and comparisons that would never end


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("so \\boxed{4}, no: \\boxed{ \\frac{1}{2} }.", "\\frac{1}{2}"),
        ("\\boxed{\\sqrt{x^{2}}}", "\\sqrt{x^{2}}"),
        ("\\boxed{3} then cut off \\boxed{\\frac{1}{", "3"),
        ("so $\\boxed 2$, and $x$ is free", "2"),
        ("\\boxed{4}, which I put in \\boxed as told", "4"),
        ("boxed{5}", None),
        ("\\boxed{4}, as told in \\boxed{}", "4"),
    ],
)
def test_the_answer_is_what_the_last_whole_box_has(text: str, found: str | None) -> None:
    assert boxed(text) == found


def test_the_answer_of_a_text_is_its_box_or_its_last_number() -> None:
    texts = (r"3, so \boxed{x^{2}} in 4 steps", "3 apples and 1,204 pears", "no idea", r"12, \boxed{}")
    assert [stated(text) for text in texts] == ["x^{2}", "1,204", None, None]
    whole = ("1e-05", "\N{MINUS SIGN}5", "sqrt(3)/2", r"\frac{\sqrt{3}}{2}", "2*√3/3", r"7\pi/4", "pi/2")
    assert [stated(f"It is 4 or {number}.") for number in whole] == [whole[0], "-5", *whole[2:]]
    assert [stated(text) for text in ("10-12", "2 digits of pi")] == ["12", "2"]


EQUAL = [
    *((r"\frac{1}{2}", "0.5"), ("1,000", "1000.0"), (r"2\sqrt{2}", r"\sqrt{8}"), ("(x+1)^2", "x^2+2x+1")),
    *((r"\pm 2", "2,-2"), (r"50\%", "50"), (r"5 \text{ cm}", "5"), (r"\text{(C)}", "C")),
    # mixed numbers
    *(("2 2/3", "8/3"), (r"2\frac{1}{2}\pi", r"\frac{5\pi}{2}"), (r"5\frac{1}{2}\%", "5.5")),
    *((r"x^2\frac{1}{3}", r"\frac{x^2}{3}"),),
    # separators
    *((r"10{,}000", "10000"), ("10 000", "10000"), ("10\u202f000", "10000")),
    *((r"-1\,234\,567.5", "-1234567.5"), (r"(1\,000, 2)", "(1000,2)"), (r"3.141\,592", "3.141592")),
    *((r"0{,}125", "1/8"), (r"1,\,234", "1, 234"), ("3{,}14", "3.14"), ("1{,}2345", "1.2345")),
    *((r"1\quad000", "1000"), ("1~000", "1000"), ("1\u00a0000", "1000"), ("1\u2009000", "1000")),
    # small and large numbers
    *(("2^{-98}", r"\frac{1}{2^{98}}"), ("3.0e-7", r"3\times 10^{-7}"), ("0.333333", "1/3")),
    *(("2*√3/3", r"\frac{2\sqrt3}{3}"), ("√(3)/2", "sqrt(3)/2"), ("-pi/2", r"-\frac{\pi}{2}"), ("1e-05", "0.00001")),
    *((r"\sqrt{2}\sqrt{3}-\sqrt{6}", "0"), ("A", r"\text{(A)}"), (".5e1", "5"), ("1e+3", "1000"), ("007", "7")),
    *((r"50\% ", "50"), (r"1.2\frac{1}{2}", "0.6"), (f"{5:01000}", "5"), ("z" * 1001, "z" * 1001)),
]
DIFFERENT = [
    *(("", "0"), ("(1,234)", "1234"), ("0.333", "1/3"), ("1.0001", "1"), ("10", "10^{10}")),
    *(("42 or 43", "42"), (r"2\cdot\frac{2}{3}", "8/3"), ("2, 2/3", "8/3"), (r"x_2\frac{1}{2}", "5/2")),
    *((r"1\,2", "12"), ("10.000", "10000"), (r"1,\,234", "1234"), ("100, 200", "100200"), (r"0{,}5", "5")),
    *(("2^{-98}", "2^{-99}"), ("10^{-20}", "0"), ("1+10^{-20}", "1"), ("10^{100}", "10^{100}+1")),
    *((r"\log(1+2^{-98})", r"\log(1+2^{-99})"), ("0.0000123456", "0.0000123457"), ("A", "An")),
    *((r"\text{}", "A"), ("%", "."), ("", ""), ("12", "13"), (f"{5:01001}", "5"), ("2^{-98}", "2^{-98}+2^{-130}")),
    *(("2 5/3", "11/3"), ("2 3/3", "3"), ("2 0/3", "2"), ("10 000 1/2", "20001/2"), ("3,2 1/2", "3,5/2")),
    *(("01 000", "1000"), ("1.5 000", "1.5"), ("2,10 000", "2,10000"), ("12 345 67", "1234567"), ("x1e3", "1000x")),
]


@pytest.mark.parametrize(("one", "other", "equal"), [(*p, True) for p in EQUAL] + [(*p, False) for p in DIFFERENT])
def test_answers_are_compared_in_both_orders(one: str, other: str, equal: bool) -> None:
    assert asyncio.run(same(one, other)) == asyncio.run(same(other, one)) == equal


@pytest.mark.parametrize("endless", ["9^{9^{9}}", "100000000!", "(" * 300 + "1" + ")" * 300])
def test_an_endless_comparison_is_cut_and_the_next_one_works(endless: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher, "SECONDS", 0.3)
    assert asyncio.run(same("0.75", "3/4"))  # the process is warm
    started = time.monotonic()
    assert not asyncio.run(same(endless, f"{len(endless)}.5"))
    assert time.monotonic() - started < 20
    monkeypatch.setattr(matcher, "SECONDS", 30.0)  # on a busy machine
    assert asyncio.run(same("1.75", "7/4"))


def test_it_works_in_any_thread_and_after_the_process_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(same("2.25", "9/4"))))
    thread.start()
    thread.join()
    assert found == [True]
    for process in psutil.Process().children():
        process.kill()
        process.wait()
    with monkeypatch.context() as patch:
        patch.setattr(matcher, "call_in_process", Mock(side_effect=RuntimeError("killed")))
        assert not asyncio.run(same("3.25", "13/4"))
    assert asyncio.run(same("3.25", "13/4"))


TASK = Task("t", "What is 1/2 + 1/3?", {"answer": "\\frac{5}{6}"})
SCORED = [
    ("It is \\boxed{\\dfrac{5}{6}}.", 1.0, 1.0),
    ("It is \\boxed{\\frac{2}{5}}.", 0.0, 1.0),
    ("\\boxed{}", 0.0, 0.0),
    ([["tool-user", "1"], ["reasoner", "5/6"]], 1.0, 1.0),
    ([["reasoner", None]], 0.0, 0.0),
]


@pytest.mark.parametrize(("answer", "score", "public"), SCORED)
def test_scores_by_hand(answer: Any, score: float, public: float) -> None:
    assert asyncio.run(MathTasks().score(TASK, answer)) == score
    assert MathTasks().public_score(TASK, answer) == public
