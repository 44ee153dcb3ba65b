"""All error messages of marl-verl from A to Z, read from its source."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

from docs_site.commands import cell

ROOT = Path(__file__).resolve().parents[2]
RAISED = ("MarlError", "user_error", "RunError", "WorkflowError", "SandboxError", "ValueError")
Assigned = dict[str, list[tuple[int, ast.expr]]]

TITLE = """# Errors A to Z

Every error message of marl-verl and its distributions, generated from the source; `{...}` is a value of your run. Each
message says what to do; [Common errors](errors.md) explains those that most users meet. The search
box finds a message by its words.
"""


@functools.cache
def messages() -> dict[str, str]:
    """Message -> the module that raises it."""
    modules: dict[str, str] = {}
    for path in sorted([*ROOT.glob("marl_verl/**/*.py"), *ROOT.glob("plugins/*/marl_verl_*/**/*.py")]):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            for text in _raised(function, checks=path.parent.name == "config"):
                if len(text.replace("{...}", "").strip(" :,'")) >= 12:
                    modules.setdefault(text, path.relative_to(ROOT).as_posix())
    return modules


def _raised(function: ast.AST, checks: bool) -> Iterator[str]:
    """The messages of the errors that a function makes; `checks`: also of those that it yields."""
    known: Assigned = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            known.setdefault(node.targets[0].id, []).append((node.lineno, node.value))
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in RAISED and node.args:
            yield " ".join(_text(node.args[0], known, node.lineno).split())
        elif checks and isinstance(node, ast.Yield) and isinstance(node.value, ast.JoinedStr | ast.Constant):
            yield " ".join(_text(node.value, known, node.lineno).split())


def _text(node: ast.AST, known: Assigned, line: int) -> str:
    """The text of an expression on a line, with {...} for what only a run knows; `known`: variables, where assigned."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, known, line) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left, known, line) + _text(node.right, known, line)
    if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Name) and node.conversion == -1:
        return _text(node.value, known, line)
    if isinstance(node, ast.Name):
        above = [(at, value) for at, value in known.get(node.id, []) if at < line]
        if above:
            at, value = max(above, key=lambda pair: pair[0])
            return _text(value, known, at)
    return "{...}"


def page() -> str:
    by_letter: dict[str, list[str]] = {}
    for text in sorted(messages(), key=lambda text: _first(text) + text.lower()):
        by_letter.setdefault(_first(text), []).append(text)
    lines = [TITLE]
    for letter, texts in by_letter.items():
        lines += [f"## {letter}", "", *(f"- {cell(text)}" for text in texts), ""]
    return "\n".join(lines)


def _first(text: str) -> str:
    """The first letter of a message, without what a run fills in."""
    return next((sign.upper() for sign in text.replace("{...}", "") if sign.isascii() and sign.isalpha()), "Other")


PAGES = {"errors-a-to-z.md": page}
