"""The sandbox: values and their equality; programs, functions and tests in every tier; `marl-verl sandbox check`."""

import asyncio
import json
import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import marl_verl_sandbox as sandbox
import pytest
from marl_verl_sandbox import Limits, Sandbox, SandboxError, current, runs, unavailable, values
from marl_verl_sandbox.verl_programs import _with, score_program
from verl.utils.reward_score import sandbox_fusion
from verl.utils.reward_score.sandbox_fusion import utils

from marl_verl.algo.sampling import scoring
from marl_verl.errors import MarlError
from marl_verl.extensions import RUN_OPTIONS, use_run_options
from marl_verl.run.prepare import plan_run
from marl_verl.tasks import Task

LOCAL = [tier for tier in ("limits", "isolated") if not unavailable(tier)]
RECIPE = Path(__file__).parents[3] / "recipes" / "quickstart" / "my_team.yaml"
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
    return Sandbox(f"external:{request.getfixturevalue('fusion')}" if request.param == "external" else request.param)


def deep(levels: int) -> Any:
    """A list in a list, and so on."""
    return [deep(levels - 1)] if levels else 1


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
    assert values.same(expected, value, numbers=True) is (expected == value or equal)


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


def test_what_a_function_returns_is_compared(box: Sandbox) -> None:
    program = "print('noise')\nclass A:\n    def g(self, x, y=1): return [x, y]\n"
    program += "def f(x): return A().g(x) if x else 1 / x"
    assert box.returns(program, "f", [2], [2, 1], QUICK).passed
    assert box.returns(program, "A.g", [2], [2, 5], QUICK, {"y": 5}).passed
    assert box.returns(program, "f", [2], [2, 1.0], QUICK).error == "returned [2, 1]"
    assert box.returns(program, "f", [0], 1, QUICK).error == "ZeroDivisionError: division by zero"
    assert box.returns(program, "g", [0], 1, QUICK).error == "NameError: it has no 'g'"
    assert box.returns("def f(", "f", [0], 1, QUICK).error.startswith("SyntaxError")
    function = box.returns("def f(x): return f", "f", [0], 1, QUICK)
    assert function.error == "TypeError: a value of type function is not plain data"
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


# verl's code rows: scored in our sandbox as verl scores them with a Sandbox Fusion server


STREAMS = {"inputs": ["1 2\n", "3 4\n", "0 0\n", "5 5\n"], "outputs": ["3\n", "7\n", "0\n", "10\n"]}
CALLS = {"fn_name": "plus", "inputs": ["1\n2", "[1]\n[2]", '"a"\n"b"'], "outputs": ["3", "[1, 2]", "ab"]}
METHOD = {"fn_name": "plus", "inputs": ["1\n2"], "outputs": ["3"]}


def fenced(code: str) -> str:
    return f"So:\n```python\n{code}\n```"


ADD = "a, b = map(int, input().split())\nprint(a + b)"


@pytest.mark.parametrize(
    ("text", "tests", "expected"),
    [
        (fenced(ADD), STREAMS, 1.0),
        (fenced("a, b = map(int, input().split())\nprint(a * b if a == 0 else 3)"), STREAMS, 0.5),
        (fenced(ADD.replace("print(a + b)", "print(a + b, '')")), STREAMS, 0.0),
        (fenced(f"{ADD}\nraise SystemExit(1)"), STREAMS, 0.0),
        (f"{fenced('print(1)')} no: {fenced(ADD)}", STREAMS, 1.0),
        (fenced("def plus(a, b): return a + b"), CALLS, 1.0),
        (fenced("def plus(a: List[int], b): return plus2(a, b)\ndef plus2(a, b): return b + a"), CALLS, 1 / 3),
        (fenced("class Solution:\n    def plus(self, a, b): return a + b"), METHOD, 1.0),
        (fenced("import os\nprint(3, flush=True)\nos._exit(0)"), CALLS, 1 / 3),
    ],
)
def test_a_score_by_hand(text: str, tests: dict[str, Any], expected: float) -> None:
    assert score_program(text, json.dumps(tests), 512) == pytest.approx(expected)
    assert sandbox.used()


def test_a_sandbox_that_fails_is_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise SandboxError("no room")

    monkeypatch.setattr(sandbox.current(), "run", broken)
    with pytest.raises(SandboxError, match="no room"):
        score_program(fenced(ADD), STREAMS, 512)


def test_verls_functions_are_where_they_were() -> None:
    """verl's code score has moved or changed if this fails: adapt `verl_programs.py`."""
    before = utils._process_single_case.__globals__["call_sandbox_api"]
    _with(utils._process_single_case, call_sandbox_api=print)
    _with(utils.check_correctness, _process_single_case=print)
    _with(sandbox_fusion.compute_score, check_correctness=print)
    assert utils.call_sandbox_api is before  # verl itself is not changed
    with pytest.raises(ImportError, match=r"verl's .*sandbox_fusion has no check_it: its code score has changed"):
        _with(sandbox_fusion.compute_score, check_it=print)


def tier_of(task: Task, answer: str) -> float:
    return float(current().tier == answer)


def test_a_score_in_a_process_of_its_own_has_the_tier_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_OPTIONS, "{}")
    scoring.end_processes()  # those of other tests have begun before the run
    use_run_options({"sandbox": "limits"})
    try:
        assert asyncio.run(scoring.scored(tier_of, [(Task("t", "p", {}), "limits")], 30.0)) == [1.0]
        use_run_options({})
        plan_run(RECIPE, ["marl.run.sandbox=limits"])  # of a command, which rehearses, and of distil
        assert current().tier == "limits"
    finally:
        scoring.end_processes()
        use_run_options({})
