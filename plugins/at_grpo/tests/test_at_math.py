"""Mathematics: answers found and compared, the workflow, its rewards, and rows of public sets as tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from marl_verl_at_grpo import math_rows
from marl_verl_at_grpo.final_answer import boxed, normal, same, stated
from marl_verl_at_grpo.greedy_tree import GreedyTree
from marl_verl_at_grpo.math_problems import (
    REASONER,
    TOOL_USER,
    FinalAnswers,
    OneReasoner,
    ToolUserReasoner,
    own_answer,
)

from marl_verl import Task
from marl_verl.episode import Act
from marl_verl.errors import MarlError
from marl_verl.testing import ScriptedPolicy, check_sampler, check_workflow, shown

TASK = Task("sum", "What is 6 * 7?", {"answer": "42"})
SCORES = FinalAnswers()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"so \boxed{\frac{1}{2}} or better \boxed{x^{2}}", "x^{2}"),
        ("3 apples and 1,204 pears", "1,204"),
        ("it is -3.50.", "-3.50"),
        (r"\boxed{unfinished", None),
        (r"\boxed{} 7", None),
        ("no idea", None),
    ],
)
def test_the_answer_of_a_text(text: str, found: str | None) -> None:
    assert stated(text) == found


def test_braces_inside_a_box_count() -> None:
    assert boxed(r"\boxed{\frac{a}{b}} .") == r"\frac{a}{b}"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1/2", "0.5"),
        (r"\frac{1}{2}", ".5"),
        (r"\dfrac12", "2/4"),
        ("1,000", "1000.0"),
        ("$ 7 $", "7"),
        ("-0", "0"),
        (r"\text{yes}", "yes"),
        ("50\\%", "50"),
        (r"90^\circ", "90"),
        ("7.", "7"),
        (r"\left( 1,2 \right)", "(1,2)"),
    ],
)
def test_one_answer_in_two_forms(one: str, other: str) -> None:
    assert same(one, other)


@pytest.mark.parametrize(("one", "other"), [("1/2", "2"), ("x+1", "1+x"), ("1/0", "0"), ("12", "1,2"), ("", "0")])
def test_two_answers(one: str, other: str) -> None:
    assert not same(one, other)


@given(st.fractions(min_value=-(10**6), max_value=10**6, max_denominator=1000))
def test_every_fraction_is_itself_in_each_notation(value: Any) -> None:
    top, bottom = value.numerator, value.denominator
    assert normal(f"{top}/{bottom}") == normal(rf"$\frac{{{top}}}{{{bottom}}}$") == str(value)
    assert normal(f"{top * 3}/{bottom * 3}") == str(value)


def printing(answer: str) -> str:
    return f"```python\nprint({answer})\n```"


def test_it_is_over_as_soon_as_program_and_reasoner_agree() -> None:
    policy = ScriptedPolicy({TOOL_USER: [printing("41"), printing("84 / 2")], REASONER: r"I say \boxed{42}"})
    run = check_workflow(ToolUserReasoner(), TASK, policy)
    assert run.answer == [[TOOL_USER, "41"], [REASONER, "42"], [TOOL_USER, "42.0"], [REASONER, "42"]]
    seen = [shown(act) for act, _ in run.turns]
    assert "printed:\n41\n" in seen[1]
    assert "a program answered 41, and the reasoner 42" in seen[2]
    assert SCORES.score(TASK, run.answer) == 1.0


def test_a_team_that_never_agrees_answers_after_the_last_turn() -> None:
    policy = ScriptedPolicy({TOOL_USER: "I have no program", REASONER: r"\boxed{41}"})
    run = check_workflow(ToolUserReasoner(turns=2), TASK, policy)
    assert run.answer == [[TOOL_USER, None], [REASONER, "41"]] * 2
    assert set(run.invalid.values()) == {"no program that prints an answer"}
    assert SCORES.score(TASK, run.answer) == 0.0


def test_each_candidate_is_rewarded_for_its_own_answer() -> None:
    def program(act: Act, session: int, candidate: Any) -> str:
        return {"0": printing("42"), "1": printing("40")}.get(str(candidate)[-1], "none")

    def think(act: Act, session: int, candidate: Any) -> str:
        return rf"{candidate}: \boxed{{4{str(candidate)[-1]}}}"

    policy = ScriptedPolicy({TOOL_USER: program, REASONER: think})
    rewards = {TOOL_USER: own_answer, REASONER: own_answer}
    found = check_sampler(GreedyTree(3), ToolUserReasoner(turns=1), TASK, policy, tasks=SCORES, rewards=rewards)
    assert [(turn.rewards["team"], turn.rewards["role"]) for turn in found.turns] == [
        *[(1.0, 1.0), (0.0, 0.0), (0.0, -0.1)],
        *[(0.0, 0.0), (0.0, 0.0), (1.0, 1.0)],
    ]


def test_the_single_agent_answers_in_one_go() -> None:
    run = check_workflow(OneReasoner(), TASK, ScriptedPolicy({REASONER: "it is 42"}))
    assert (run.answer, SCORES.score(TASK, run.answer)) == ([[REASONER, "42"]], 1.0)


def test_an_invalid_answer_raises() -> None:
    with pytest.raises(MarlError, match=r"task 'empty' has no answer: its data must be"):
        SCORES.score(Task("empty", "?"), [[REASONER, "1"]])
    with pytest.raises(MarlError, match=r"a list of \[agent, answer\], got '42'"):
        SCORES.score(TASK, "42")


ROWS = [
    ({"question": "1 + 1?", "answer": "One and one.\n#### 2"}, "2"),
    ({"problem": "Half?", "solution": r"It is \boxed{\frac{1}{2}}."}, r"\frac{1}{2}"),
    ({"Problem": "Old?", "Answer": 204, "ID": "2024-I-1"}, "204"),
    ({"prompt": "Text?", "final_answer": " yes "}, "yes"),
]


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_rows_of_public_sets_become_tasks(tmp_path: Path, ending: str) -> None:
    for number, (given_row, answer) in enumerate(ROWS):
        source, target = tmp_path / f"{number}.{ending}", tmp_path / "out" / f"{number}.jsonl"
        if ending == "jsonl":
            source.write_text(f"{json.dumps(given_row)}\n\n{json.dumps(given_row)}\n")
        else:
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist([given_row] * 2), source)
        assert math_rows.convert(source, target) == 1  # the same problem twice is one task
        (task,) = [Task(**json.loads(line)) for line in target.read_text().splitlines()]
        assert task.data == {"answer": answer}
        assert task.prompt.endswith("?")
        assert SCORES.score(task, [[REASONER, answer]]) == 1.0


def test_a_problem_has_one_id_wherever_it_comes_from() -> None:
    one, other = ({"problem": text, "answer": "1"} for text in ("Is  it\n1?", "Is it 1?"))
    assert math_rows.task_row(one, "a")["id"] == math_rows.task_row(other, "b")["id"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "x"}\n', r"row 1 has none of problem, question, prompt as text: it has text"),
        ('{"problem": "x", "answer": ""}\n', "row 1 has none of answer"),
        ("[1]\n", "row 1 must be an object, got 1"),
        ("{\n", "line 1 is not a JSON object"),
        ("", "has no rows"),
    ],
)
def test_invalid_rows_raise_and_nothing_is_written(tmp_path: Path, content: str, message: str) -> None:
    source, target = tmp_path / "rows.jsonl", tmp_path / "tasks.jsonl"
    source.write_text(content)
    with pytest.raises(MarlError, match=message):
        math_rows.convert(source, target)
    assert not target.exists()


def test_the_command_prints_its_result_or_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "rows.jsonl", tmp_path / "tasks.jsonl"
    source.write_text(json.dumps(ROWS[0][0]))
    monkeypatch.setattr("sys.argv", ["math_rows", str(source), str(target)])
    assert math_rows.main() == 0
    assert capsys.readouterr().out == f"1 problems in {target}\n"
    monkeypatch.setattr("sys.argv", ["math_rows", str(tmp_path / "none.jsonl"), str(target)])
    assert math_rows.main() == 2
    assert capsys.readouterr().err.startswith(f"math_rows: no file '{tmp_path / 'none.jsonl'}': did you mean ")


def test_lists_of_answers_and_a_json_list(tmp_path: Path) -> None:
    source, target = tmp_path / "olympiad.json", tmp_path / "out.jsonl"
    source.write_text(json.dumps([{"question": "x^2 = 4", "final_answer": ["2", "-2"]}], indent=2))
    assert math_rows.convert(source, target) == 1
    assert json.loads(target.read_text())["data"] == {"answer": "2, -2"}
