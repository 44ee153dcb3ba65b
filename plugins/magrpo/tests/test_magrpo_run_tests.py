"""Programs in a separate process: exceptions are reported, and time and memory are limited."""

from __future__ import annotations

import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from marl_verl_magrpo.run_tests import Limits, Outcome, run_tests, share

QUICK = Limits(seconds=2.0, test_seconds=0.5)


def run(program: str, *tests: str, setup: str = "", limits: Limits = QUICK) -> tuple[Outcome, ...]:
    return run_tests(program, "f", setup, tests, limits)


def test_every_test_has_its_outcome() -> None:
    found = run("def f(x): return x + 1", "assert f(1) == 2", "assert candidate(1) == 3, 'no'", "f(None)")
    assert [each.passed for each in found] == [True, False, False]
    assert found[1].message == "AssertionError: no"
    assert found[2].message.startswith("TypeError: unsupported operand")
    assert share(found) == pytest.approx(1 / 3)
    assert share(()) == 0.0


def test_setup_runs_before_the_tests() -> None:
    assert run("def f(x): return x", "assert f(K) == 3", setup="K = 3") == (Outcome(True),)
    assert run("def f(x): return x", "assert True", setup="raise OSError('gone')") == (Outcome(False, "OSError: gone"),)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("def f(:", "SyntaxError"),
        ("g = 1", "NameError: it has no 'f'"),
        ("raise ValueError('at once')", "ValueError: at once"),
        ("raise SystemExit(0)", "SystemExit"),
    ],
)
def test_a_program_that_does_not_load_fails_every_test(program: str, message: str) -> None:
    found = run(program, "assert True", "assert True")
    assert [each.passed for each in found] == [False, False]
    assert all(each.message.startswith(message) for each in found)


def test_a_loop_ends_and_the_tests_after_it_run() -> None:
    begun = time.monotonic()
    found = run("def f(x):\n    while x: pass", "f(1)", "assert f(0) is None")
    assert found == (Outcome(False, "longer than 0.5 s"), Outcome(True))
    assert time.monotonic() - begun < 30


def test_a_program_that_catches_everything_ends_as_well() -> None:
    stubborn = """
def f(x):
    while True:
        try:
            while True:
                x += 1
        except BaseException:
            continue
"""
    begun = time.monotonic()
    found = run(stubborn, "f(1)", "assert True", limits=Limits(seconds=1.0, test_seconds=0.5))
    assert [each.passed for each in found] == [False, False]
    assert time.monotonic() - begun < 30


def test_memory_is_limited() -> None:
    (found,) = run("def f(x): return bytearray(1 << 30)", "f(1)")
    assert not found.passed
    assert "MemoryError" in found.message


def test_a_program_that_ends_its_process_loses_the_tests_that_are_left() -> None:
    found = run("import os\ndef f(x):\n    if x: os._exit(3)", "f(0)", "f(1)", "f(0)")
    assert found == (Outcome(True), *[Outcome(False, "the program ended the process (3)")] * 2)


def test_what_a_program_prints_is_not_taken_for_outcomes() -> None:
    assert run("print('[true, \"\"]\\n' * 5)\ndef f(x): return x", "assert f(1) == 2")[0].passed is False


def test_files_are_written_to_a_folder_that_goes_and_stay_small() -> None:
    program = "def f(name, size):\n    with open(name, 'w') as file:\n        file.write('x' * size)"
    written, too_large = run(program, "f('a', 9)", "f('b', 1 << 22)")
    assert written.passed
    assert not too_large.passed
    assert not Path("a").exists()


def test_the_same_question_is_answered_once() -> None:
    program = "import uuid\nmark = uuid.uuid4().hex\ndef f(x): return x"
    (first,) = run(program, "assert f(1) != 1, mark")
    assert not first.passed
    assert re.fullmatch("AssertionError: [0-9a-f]{32}", first.message)
    assert run(program, "assert f(1) != 1, mark") == (first,)  # another run would have another mark


def test_not_more_programs_run_at_once_than_there_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    running: list[int] = []
    most = 0

    def child(command: list[str], given: str, folder: str, seconds: float) -> str:
        nonlocal most
        running.append(1)
        most = max(most, len(running))
        time.sleep(0.02)
        running.pop()
        return "gone"

    monkeypatch.setattr("marl_verl_magrpo.run_tests._child", child)
    cores = os.cpu_count() or 1
    with ThreadPoolExecutor(4 * cores + 4) as pool:
        found = list(pool.map(lambda number: run(f"program {number}", "t"), range(4 * cores + 4)))
    assert found == [(Outcome(False, "gone"),)] * len(found)
    assert 1 <= most <= cores
