"""Final answers: extracted, compared by math-verify, and comparisons that would never end."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_math import matcher
from marl_verl_math.answers import boxed, stated
from marl_verl_math.matcher import same
from marl_verl_math.tasks import MathTasks

from marl_verl import MarlError, Task


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("\\boxed{5}", "5"),
        ("so \\boxed{4}, no: \\boxed{ \\frac{1}{2} }.", "\\frac{1}{2}"),
        ("\\fbox{7} and \\fboxed{8}", "8"),
        ("\\boxed{\\sqrt{x^{2}}}", "\\sqrt{x^{2}}"),
        ("\\boxed{3} then cut off \\boxed{\\frac{1}{", "3"),
        ("\\boxed{}", ""),
        ("so $\\boxed 2$, and $x$ is free", "2"),
        ("$x = \\boxed\\frac{1}{2}.$", "\\frac{1}{2}"),
        ("\\(\\boxed 2 \\frac{2}{3}\\) cups", "2 \\frac{2}{3}"),
        ("it is \\boxed 42. It costs $5", "42"),
        ("\\boxed{4}, which I put in \\boxed as told", "4"),
        ("\\boxed{3} and $\\boxed -7$", "-7"),
        ("in \\boxed", None),
        ("boxed{5}", None),
        ("", None),
    ],
)
def test_the_answer_is_what_the_last_whole_box_has(text: str, found: str | None) -> None:
    assert boxed(text) == found


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


EQUAL = [
    (r"\frac{1}{2}", "0.5"),
    (r"\frac12", "0.5"),
    ("-1/2", r"-\frac{1}{2}"),
    ("1,000", "1000.0"),
    (r"2\sqrt{2}", r"\sqrt{8}"),
    ("(x+1)^2", "x^2+2x+1"),
    (r"\{1,2\}", r"\{2,1\}"),
    (r"\pm 2", "2,-2"),
    (r"(-\infty,3)\cup(3,\infty)", r"(-\infty, 3) \cup (3, \infty)"),
    (r"50\%", "50"),
    ("$x = 7$", "7"),
    (r"5 \text{ cm}", "5"),
    (r"\text{(C)}", "C"),
    (r"1.5 \times 10^{3}", "1500"),
    # mixed numbers
    ("2 2/3", "8/3"),
    (r"2\frac{2}{3}", r"\frac{8}{3}"),
    (r"-2\tfrac{2}{3}", "-8/3"),
    (r"(2\frac{1}{2}, 3)", "(5/2, 3)"),
    (r"2\frac{1}{2}\pi", r"\frac{5\pi}{2}"),
    (r"5\frac{1}{2}\%", "5.5"),
    (r"3 - 2\frac{1}{2}", "0.5"),
    (r"2\cdot\frac{2}{3}", r"\frac{4}{3}"),
    (r"x^2\frac{1}{3}", r"\frac{x^2}{3}"),
    (r"\frac{1}{2}\frac{1}{3}", "1/6"),
    # separators
    (r"10\,000", "10000"),
    (r"10{,}000", "10000"),
    (r"10\ 000", "10,000"),
    ("10 000", "10000"),
    (r"10,\!000", "10000"),
    ("10\u202f000", "10000"),
    (r"-1\,234\,567.5", "-1234567.5"),
    (r"(1\,000, 2)", "(1000,2)"),
    (r"1{,}000 \frac{1}{2}", "1000.5"),
    (r"3.141\,592", "3.141592"),
    (r"0{,}125", "1/8"),
    (r"1,\,234", "1, 234"),
    # small and large numbers
    ("2^{-98}", r"\frac{1}{2^{98}}"),
    (r"(2^{-98}, 1)", r"(1/2^{98}, 1)"),
    (r"\frac{1}{2^{98}}x", "2^{-98}x"),
    ("1/2006!", r"\frac{1}{2006!}"),
    (r"2^{2006}", r"4^{1003}"),
    ("3.0e-7", r"3\times 10^{-7}"),
    ("0.333333", "1/3"),
    (r"\sqrt{2}\sqrt{3}-\sqrt{6}", "0"),
    ("A", r"\text{(A)}"),
]
DIFFERENT = [
    ("1/2", "2"),
    ("", "0"),
    ("5", "6"),
    ("(1,234)", "1234"),
    ("0.333", "1/3"),
    ("1.0001", "1"),
    ("10", "10^{10}"),
    (r"\sqrt2", "1.41"),
    ("[0,1]", "(0,1)"),
    (r"\{1,2\}", r"\{1,3\}"),
    ("42 or 43", "42"),
    ("42 apples and 7", "42"),
    (r"2\frac{2}{3}", r"\frac{4}{3}"),
    (r"-2\frac{1}{2}", "-1.5"),
    (r"2\cdot\frac{2}{3}", "8/3"),
    ("2, 2/3", "8/3"),
    (r"x_2\frac{1}{2}", "5/2"),
    (r"1\,2", "12"),
    (r"10\,00", "1000"),
    ("10.000", "10000"),
    (r"1,\,234", "1234"),
    ("100, 200", "100200"),
    (r"0{,}5", "5"),
    ("1/2006!", "1/2004!"),
    ("2^{-98}", "2^{-99}"),
    ("10^{-20}", "0"),
    ("1+10^{-20}", "1"),
    ("10^{100}", "10^{100}+1"),
    ("-2^{-98}", "2^{-98}"),
    (r"(2^{-98}, 1)", r"(2^{-99}, 1)"),
    ("2^{-98}x", "2^{-99}x"),
    (r"\begin{pmatrix}2^{-98}\\1\end{pmatrix}", r"\begin{pmatrix}2^{-99}\\1\end{pmatrix}"),
    ("e^{-300}", "e^{-301}"),
    (r"\log(1+2^{-98})", r"\log(1+2^{-99})"),
    (r"\sqrt{2}\cdot10^{-20}", r"\sqrt{3}\cdot10^{-20}"),
    ("0.0000123456", "0.0000123457"),
    (r"10^{-20} \text{ kg}", r"10^{-21} \text{ kg}"),
    ("A", "An"),
    (r"\text{}", "A"),
    ("%", "."),
]


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_equal_answers(one: str, other: str) -> None:
    assert asyncio.run(same(one, other))
    assert asyncio.run(same(other, one))


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different_answers(one: str, other: str) -> None:
    assert not asyncio.run(same(one, other))
    assert not asyncio.run(same(other, one))


@settings(max_examples=30, deadline=None)
@given(st.fractions(min_value=-(10**6), max_value=10**6, max_denominator=1000))
def test_a_fraction_is_itself_in_each_notation(value: Any) -> None:
    top, bottom = value.numerator, value.denominator
    assert asyncio.run(same(f"{top * 3}/{bottom * 3}", rf"$\frac{{{top}}}{{{bottom}}}$"))


@pytest.mark.parametrize(
    "endless", ["9^{9^{9}}", "10^{10^{10}}", "100000000!", r"\sum_{n=1}^{10^{12}} n!", "(" * 300 + "1" + ")" * 300]
)
def test_a_comparison_that_would_not_end_is_cut_and_the_next_one_works(
    endless: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matcher, "SECONDS", 0.3)
    assert asyncio.run(same("0.75", "3/4"))  # the process is warm
    started = time.monotonic()
    assert not asyncio.run(same(endless, f"{len(endless)}.5"))
    assert time.monotonic() - started < 20
    monkeypatch.setattr(matcher, "SECONDS", 30.0)  # on a busy machine
    assert asyncio.run(same("1.75", "7/4"))


def test_the_event_loop_goes_on_while_a_comparison_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher, "SECONDS", 1.0)

    async def main() -> int:
        work, ticks = asyncio.create_task(same("9^{9^{9}}", "8.5")), 0
        while not work.done():
            await asyncio.sleep(0.01)
            ticks += 1
        assert not work.result()
        return ticks

    assert asyncio.run(main()) > 5


def test_it_works_in_any_thread_and_after_the_process_is_killed() -> None:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(same("2.25", "9/4"))))
    thread.start()
    thread.join()
    assert found == [True]
    process = matcher._COMPARE._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    assert asyncio.run(same("3.25", "13/4"))


# the task set

TASK = Task("t", "What is 1/2 + 1/3?", {"answer": "\\frac{5}{6}"})
SCORED = [  # answer, score, public score
    ("It is \\boxed{\\dfrac{5}{6}}.", 1.0, 1.0),
    ("It is \\boxed{\\frac{2}{5}}.", 0.0, 1.0),
    ("\\boxed{10/12}", 1.0, 1.0),
    ("\\boxed{0.8}", 0.0, 1.0),
    ("5/6", 0.0, 0.0),
    ("\\boxed{}", 0.0, 0.0),
    ("", 0.0, 0.0),
    ([["tool-user", "5/6"], ["reasoner", "1"]], 0.0, 1.0),
    ([["tool-user", "1"], ["reasoner", "5/6"]], 1.0, 1.0),
    ([["reasoner", None]], 0.0, 0.0),
    ([], 0.0, 0.0),
]


@pytest.mark.parametrize(("answer", "score", "public"), SCORED)
def test_scores_by_hand(answer: Any, score: float, public: float) -> None:
    assert asyncio.run(MathTasks().score(TASK, answer)) == score
    assert MathTasks().public_score(TASK, answer) == public


def test_an_invalid_answer_raises() -> None:
    with pytest.raises(MarlError, match=r"task 'empty' has no answer: its data must be"):
        asyncio.run(MathTasks().score(Task("empty", "?"), [["reasoner", "1"]]))
    with pytest.raises(MarlError, match=r"a text, or a list of \[agent, answer\], got 5"):
        asyncio.run(MathTasks().score(TASK, 5))
