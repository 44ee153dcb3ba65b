"""Code reward in levels, up to 4.0: a helper function and a main function, judged on their syntax trees.

    helper     0.4   the helper function is defined and returns something
    main       0.6   the main function is defined; without it no further level counts
    syntax     0.5   both together compile; otherwise no further level counts
    tests      1.0   times the share of tests that pass; at 0 no further level counts
    calls      0.5   the main function calls the helper
    substance  1.0   and is more than a wrapper around it
    ignored   -0.5   but never uses what it returned

"Calls" is a call by the helper's name below the main function, where the main code does not define that name itself. A
wrapper only calls the helper and returns its result. A result is unused if each call is a statement by itself, or is
assigned to a name that the main function never reads.

Source: MAGRPO, arXiv 2508.04652, and the authors' code for the numbers. Their code uses regular expressions; the one
for the last level misses plain calls.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TypeGuard

FENCE = re.compile(r"```[^\n]*\n(.*?)(?:```|\Z)", re.DOTALL)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def code_in(text: str) -> str:
    """The code of an answer: its fenced blocks, or the whole text without one."""
    return "\n\n".join(block.strip() for block in FENCE.findall(text)) or text.strip()


def joined(helper: str, main: str) -> str:
    """Both as one module; identical texts (a team of one) are included once."""
    return helper if helper == main else f"{helper}\n\n\n{main}\n"


def levels(helper: str, main: str, aux: str, entry: str, passed: float) -> dict[str, float]:
    """Level -> its reward, in order, up to the last level that counts; their sum is the reward, up to 4.0.

    Args:
        helper, main: code of the two.
        aux, entry: names of the helper function and of the main function.
        passed: share of the tests that both together pass, 0 to 1.
    """
    found = {"helper": 0.4 if returns(function(helper, aux)) else 0.0}
    main_function = function(main, entry)
    found["main"] = 0.6 if main_function is not None else 0.0
    if main_function is not None:
        found["syntax"] = 0.5 if compiles(joined(helper, main)) else 0.0
    if found.get("syntax"):
        found["tests"] = passed
    if main_function is not None and found.get("tests"):
        shadowed = helper != main and function(main, aux) is not None
        called = [] if shadowed else list(calls(main_function, aux))
        found["calls"] = 0.5 if called else 0.0
        if called:
            found["substance"] = 0.0 if wrapper(main_function, aux) else 1.0
            found["ignored"] = 0.0 if used(main_function, aux) else -0.5
    return found


def parsed(code: str) -> ast.Module | None:
    """The syntax tree of the code; None if it cannot be parsed, is nested too deeply or has a null character."""
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def compiles(code: str) -> bool:
    """Whether the code compiles as a module (a `return` outside a function parses, but does not compile)."""
    try:
        compile(code, "<answer>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def function(code: str, name: str) -> Function | None:
    """The last function of that name on the module's top level."""
    module = parsed(code)
    body = module.body if module is not None else []
    found = [each for each in body if isinstance(each, Function) and each.name == name]
    return found[-1] if found else None


def returns(found: Function | None) -> bool:
    """Whether a function returns or yields a value, nested functions excluded."""
    return found is not None and any(
        isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) and node.value is not None for node in own(found)
    )


def calls(found: Function, name: str) -> Iterator[ast.Call]:
    """The calls of `name` anywhere below a function."""
    for node in ast.walk(found):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
            yield node


def wrapper(found: Function, name: str) -> bool:
    """Whether a function only calls `name` and returns its result, directly or via a variable."""
    held: set[str] = set()
    for statement in _body(found):
        value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign | ast.Return | ast.Expr) else None
        passes_on = isinstance(value, ast.Name) and value.id in held
        if value is None or not (passes_on or _is_call(value, name)):
            return False
        if isinstance(statement, ast.Assign):
            held |= {target.id for target in statement.targets if isinstance(target, ast.Name)}
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            held.add(statement.target.id)
    return True


def used(found: Function, name: str) -> bool:
    """Whether the result of any call of `name` is used."""
    read = {node.id for node in ast.walk(found) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    lost = {id(node.value) for node in ast.walk(found) if _loses(node, read)}
    return any(id(call) not in lost for call in calls(found, name))


def own(found: Function) -> Iterator[ast.AST]:
    """The nodes of a function, nested functions and classes excluded."""
    left: list[ast.AST] = list(found.body)
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, Function | ast.ClassDef | ast.Lambda):
            left += ast.iter_child_nodes(node)


def _body(found: Function) -> list[ast.stmt]:
    """The statements of a function without its docstring."""
    first = found.body[0]
    return found.body[1:] if ast.get_docstring(found) is not None and isinstance(first, ast.Expr) else found.body


def _is_call(value: ast.expr, name: str) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == name


def _loses(node: ast.AST, read: set[str]) -> TypeGuard[ast.Expr | ast.Assign | ast.AnnAssign]:
    """Whether a statement discards its value."""
    if isinstance(node, ast.Assign):
        return not _kept(node.targets, read)
    if isinstance(node, ast.AnnAssign):
        return not _kept([node.target], read)
    return isinstance(node, ast.Expr)


def _kept(targets: list[ast.expr], read: set[str]) -> bool:
    """Whether a value assigned to the targets is read later, or stored in an item or attribute."""
    return any(
        isinstance(node, ast.Attribute | ast.Subscript) or (isinstance(node, ast.Name) and node.id in read)
        for target in targets
        for node in ast.walk(target)
    )
