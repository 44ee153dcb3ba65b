"""The sandbox: values and their equality; programs, functions and tests in every tier; `marl-verl sandbox check`."""

from __future__ import annotations

import json
import math
import os
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from marl_verl_sandbox import Limits, Sandbox, SandboxError, runs, unavailable, values

from marl_verl.algo.sampling import Sample
from marl_verl.algo.sampling.stored import sample_lines
from marl_verl.cli.main import main
from marl_verl.episode import Episode, Journal
from marl_verl.errors import MarlError
from marl_verl.extensions import check_run_options, use_run_options, used_run_options
from marl_verl.tasks import Task

LOCAL = [tier for tier in ("limits", "isolated") if not unavailable(tier)]
QUICK = Limits(seconds=20.0, megabytes=256)


class Fusion(BaseHTTPRequestHandler):
    """A server with Sandbox Fusion's protocol, which runs programs in tier `limits`."""

    requests: list[dict[str, Any]] = []

    def do_POST(self) -> None:
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.requests.append(given)
        limits = Limits(min(given["run_timeout"], 2), given["memory_limit_MB"])
        if "crash the server" in given["code"]:
            answer: dict[str, Any] = {"status": "SandboxError", "message": "no room", "run_result": None}
        else:
            code, out, err = self.box.run(given["code"], given["stdin"] or "", limits)
            status = "TimeLimitExceeded" if code is None else "Finished"
            result = {"status": status, "return_code": code, "stdout": out, "stderr": err, "execution_time": 0.1}
            answer = {"status": "Failed" if code is None or code else "Success", "run_result": result}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def fusion() -> Iterator[str]:
    """The URL of a running server."""
    with pytest.MonkeyPatch.context() as patch, ThreadingHTTPServer(("127.0.0.1", 0), Fusion) as server:
        patch.setattr(Fusion, "box", Sandbox("limits"), raising=False)
        patch.setattr(runs, "at_once", threading.BoundedSemaphore(9))  # client and server are one process here
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/run_code"
        server.shutdown()


@pytest.fixture(params=[*LOCAL, pytest.param("external", marks=pytest.mark.slow)])
def box(request: pytest.FixtureRequest) -> Sandbox:
    """A sandbox of each tier that the machine gives."""
    tier = f"external:{request.getfixturevalue('fusion')}" if request.param == "external" else request.param
    return Sandbox(tier)


def deep(levels: int) -> Any:
    """A list in a list, and so on."""
    return [deep(levels - 1)] if levels else 1


# values


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 0, -1, 2**63, -(10**5000), 0.5, -0.0, math.inf, "", "\ud800 \u2028 é", b"\0\xff", 1 + 2j),
        *([], [[1], "a"], (), (1, (2,)), {}, {"a": [1]}, {1: 2, (1, 2): None}, {"dict": [[1, 2]]}, {"int": "0x1"}),
        *(set(), {1, 2}, frozenset({"a"}), {"set": {1}}),
    ],
    ids=lambda value: f"{type(value).__name__}",
)
def test_a_plain_value_arrives_as_it_is(value: Any) -> None:
    arrived = values.from_json(values.to_json(value))
    assert arrived == value
    assert type(arrived) is type(value)


def test_a_subclass_arrives_as_its_plain_value() -> None:
    class Number(int):
        __eq__ = lambda self, other: True  # noqa: E731
        __hash__ = int.__hash__

    class Text(str):
        def __str__(self) -> str:
            return "other"

    assert values.from_json(values.to_json([Number(3), Text("a")])) == [3, "a"]
    assert type(values.from_json(values.to_json(Number(3)))) is int


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"{", b"\xff", b"1" * 5000, b'{"int": 5}', b'{"set": [[]]}', b'{"a": 1}', b'{"int": "1", "set": []}'),
        *(b"[" * 100_000, b'{"bytes": "zz"}', b'{"dict": [1]}', b'{"complex": ["a", 1, 2]}', b"{}"),
        b'{"complex": [1' + b"0" * 4000 + b", 0]}",
    ],
    ids=range(14),
)
def test_a_message_of_another_form_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        values.from_json(text)


@pytest.mark.parametrize(
    ("expected", "value", "equal"),
    [
        *((1, 1, True), (1, 1.0, False), (1.0, 1, False), (1, True, False), (True, 1, False), (0, False, False)),
        *((0.1 + 0.2, 0.3, False), (0.0, -0.0, True), (math.nan, math.nan, True), (math.inf, -math.inf, False)),
        *(("a", "a", True), ("a", b"a", False), ("1", 1, False), (None, None, True), (None, False, False)),
        *(([1], [1], True), ([1], (1,), True), ([1], [True], False), ([1], [1, 2], False), ([], None, False)),
        *(([1], {1}, False), ({"a": [1]}, {"a": (1,)}, True), ({"a": 1}, {"a": True}, False)),
        *(({"1": 2}, {1: 2}, False), ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True), ({}, [], False), ("", None, False)),
    ],
)
def test_equality_is_by_type_and_value(expected: Any, value: Any, equal: bool) -> None:
    assert values.same(expected, value) is equal


# programs


def test_a_program_runs_as_python_runs_it(box: Sandbox) -> None:
    program = "import sys\nprint(__name__, input(), sys.stdin.read())\nprint('e', file=sys.stderr)\nsys.exit(4)"
    assert box.run(program, "é\nb\n", QUICK) == (4, "__main__ é b\n\n", "e\n")
    code, out, err = box.run("def f():\n    return 1 / 0\nf()", "", QUICK)
    assert (code, out) == (1, "")
    assert err.rstrip().endswith("ZeroDivisionError: division by zero")
    assert box.run("raise SystemExit('bad')", "", QUICK)[::2] == (1, "bad\n")


@pytest.mark.parametrize("tier", LOCAL)
def test_output_of_threads_and_exit_functions_is_there(tier: str) -> None:
    program = "import atexit, threading\natexit.register(print, 2)\nthreading.Thread(target=print, args=(1,)).start()"
    assert Sandbox(tier).run(program, "", QUICK) == (0, "1\n2\n", "")
    _, _, error = Sandbox(tier).run("def f():\n    return 1 / 0\nf()", "", QUICK)
    assert error.count('File "program.py"') == error.count("File ") == 2
    assert Sandbox(tier).run("import numpy\nprint(numpy.arange(3).sum())", "", QUICK)[1] == "3\n"
    assert Sandbox(tier).run("print(hash('a'))", "", QUICK) == Sandbox(tier).run("print(hash('a'))", "", QUICK)
    random = "import random\nprint(random.random())"
    assert Sandbox(tier).run(random, "", QUICK) != Sandbox(tier).run(random, "", QUICK)


def test_words_of_the_output_are_compared(box: Sandbox) -> None:
    program = "print(1, int(input()))\nprint(3)"
    assert box.prints(program, "2\n", "1 2\n\n3  ", QUICK).passed
    assert box.prints(program, "2\n", "1 2 3.0", QUICK).verdict == "wrong"
    assert box.prints(program, "a\n", "1 2 3", QUICK).verdict == "error"
    assert box.prints("while True: pass", "", "", Limits(0.5)).verdict == "timeout"


def test_what_a_function_returns_is_compared(box: Sandbox) -> None:
    program = (
        "print('noise')\nclass A:\n    def g(self, x, y=1): return [x, y]\ndef f(x): return A().g(x) if x else 1 / x"
    )
    assert box.returns(program, "f", [2], [2, 1], QUICK).passed
    assert box.returns(program, "A.g", [2], [2, 5], QUICK, {"y": 5}).passed
    assert box.returns(program, "f", [2], [2, 1.0], QUICK).error == "returned [2, 1]"
    assert box.returns(program, "f", [0], 1, QUICK).error == "ZeroDivisionError: division by zero"
    assert box.returns(program, "g", [0], 1, QUICK).error == "NameError: it has no 'g'"
    assert box.returns("def f(", "f", [0], 1, QUICK).error.startswith("SyntaxError")
    assert (
        box.returns("def f(x): return f", "f", [0], 1, QUICK).error
        == "TypeError: a value of type function is not plain data"
    )
    assert box.returns("import time\ndef f(x): time.sleep(9)", "f", [0], 1, Limits(0.5)).verdict == "timeout"


def test_assertions_see_plain_values(box: Sandbox) -> None:
    program = "def f(x):\n    if x < 0: raise ValueError('no')\n    return (x, {x})"
    setup = "import math\ndef double(x): return 2 * x"
    test = "assert candidate(1) == f(x=1) == (1, {1})\nassert double(f(2)[0]) == math.factorial(2) * 2"
    assert box.holds(program, "f", setup, test, QUICK).passed
    raises = (
        "try:\n    f(-1)\nexcept ValueError as error:\n    assert str(error) == 'no'\nelse:\n    raise AssertionError"
    )
    assert box.holds(program, "f", "", raises, QUICK).passed
    found = box.holds(program, "f", "", "assert f(1) == (1, {2}), 'it is not'", QUICK)
    assert (found.verdict, found.error) == ("wrong", "AssertionError: it is not")
    assert box.holds("f = 1 / 0", "f", "", "assert True", QUICK).error.startswith("ZeroDivisionError")


def test_the_example_of_the_docs_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[3] / "docs" / "sandbox.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(code, {})
    assert capsys.readouterr().out.startswith("True passed ")


# tiers and the command


def test_a_recipe_with_a_tier_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def config(tier: Any) -> Any:
        return {"sandbox": tier}

    check_run_options({})
    for tier in ("auto", *LOCAL, "external:http://127.0.0.1:1/"):
        check_run_options(config(tier))
    with pytest.raises(MarlError, match=r"unknown sandbox tier 'isolate': did you mean 'isolated'"):
        Sandbox("isolate")
    monkeypatch.setattr(runs, "unavailable", lambda tier: f"tier '{tier}' is not available: forbidden")
    check_run_options(config("auto"))
    with pytest.raises(MarlError, match=r"'marl.run.sandbox': tier 'isolated' is not available: forbidden"):
        check_run_options(config("isolated"))
    with pytest.raises(MarlError, match=r"'marl.run.sandbox': unknown sandbox tier 'True'"):
        check_run_options(config(True))


def test_a_stored_episode_names_the_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_current", [])
    monkeypatch.setattr(runs, "_tier", "auto")
    sample = Sample([Episode("u", 0, Task("t", "p"), [], "a", True, Journal(()))])
    use_run_options({})
    assert used_run_options() == {}
    use_run_options({"sandbox": LOCAL[0]})
    assert (used_run_options(), runs.current().tier) == ({"sandbox": LOCAL[0]}, LOCAL[0])
    # a sample is the same in a process that has run programs: only the caller knows whether these episodes did
    assert "sandbox" not in json.loads(sample_lines(sample, "u", "t", False)[0])
    assert json.loads(sample_lines(sample, "u", "t", False, used_run_options())[0])["sandbox"] == LOCAL[0]


@pytest.mark.slow
def test_a_server_that_fails_is_no_score(fusion: str) -> None:
    with pytest.raises(SandboxError, match=r"the sandbox server at 'http://127.0.0.1:1/' failed"):
        Sandbox("external:http://127.0.0.1:1/").run("1")
    with pytest.raises(SandboxError, match="failed: no room"):
        Sandbox(f"external:{fusion}").run("crash the server")
    Fusion.requests.clear()
    Sandbox(f"external:{fusion}").returns("def f(x): return x", "f", [1], "SECRET")
    assert Fusion.requests
    assert "SECRET" not in json.dumps(Fusion.requests)


def check(tmp_path: Path, tests: Any, *options: str, program: str = "def add(a, b): return a + b") -> int:
    (tmp_path / "program.py").write_text(program)
    (tmp_path / "tests.json").write_text(tests if isinstance(tests, str) else json.dumps(tests))
    return main(["sandbox", "check", str(tmp_path / "program.py"), "--tests", str(tmp_path / "tests.json"), *options])


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ("[", "cannot be read as JSON"),
        ([], "must be a mapping of options, got []"),
        ({}, "there must be one case or more"),
        ({"entry": "f", "cases": [{"args": [], "expect": 1}]}, "cases 1.expect': did you mean 'expected'?"),
        ({"entry": "f", "cases": [{"args": [deep(300)], "expected": 1}]}, "nested more than 200"),
        ({"stdin_cases": [{"stdin": 1, "stdout": ""}]}, "stdin_cases 1.stdin' must be text, got 1"),
        ({"stdin_cases": [{"stdin": "", "stdout": ""}], "timeout": 0}, "timeout' must be a number > 0"),
    ],
)
def test_a_wrong_test_file_is_one_line(
    tests: Any, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(tmp_path, tests) == 2
    error = capsys.readouterr().err
    assert message in error
    assert str(tmp_path / "tests.json") in error
    assert error.count("\n") == 1
    os.mkfifo(tmp_path / "fifo")
    assert main(["sandbox", "check", str(tmp_path / "fifo"), "--tests", str(tmp_path / "tests.json")]) == 2


@pytest.mark.parametrize("tier", LOCAL)
def test_the_command_scores_a_program(tier: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tests = {
        "entry": "add",
        "cases": [{"args": [1, 2], "expected": 3}, {"args": [1, 2], "expected": 3.0}],
        "timeout": 9,
    }
    assert check(tmp_path, tests, "--tier", tier, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["passed"], found["total"], found["tier"]) == (1, 2, tier)
    assert [case["reason"] for case in found["cases"]] == ["", "returned 3"]
    streams = {"stdin_cases": [{"stdin": "1 2\n", "stdout": "3\n"}]}
    assert check(tmp_path, streams, "--tier", tier, program="print(sum(map(int, input().split())))") == 0
    assert capsys.readouterr().out == f"case 1: passed\n1 of 1 passed, tier {tier}\n"


@pytest.mark.parametrize("tier", LOCAL)
def test_values_of_many_levels_are_compared(tier: str) -> None:
    value: Any = 1
    for _ in range(190):
        value = {"a": value}
    assert Sandbox(tier).returns("def f(x): return x", "f", [value], value, QUICK).passed
    assert Sandbox(tier).returns("def f(x): return [x, x]", "f", [value], value, QUICK).verdict == "wrong"
    with pytest.raises(MarlError, match="an argument of 'f' cannot be passed on: a value that is nested more than"):
        Sandbox(tier).returns("def f(x): return x", "f", [deep(300)], 1, QUICK)
    with pytest.raises(MarlError, match="must be at most 64 MiB"):
        Sandbox(tier).run("1" * (1 << 26))
