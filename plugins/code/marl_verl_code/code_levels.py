"""Code reward in levels, up to 4.0: a helper function and a main function, `aux` and the entry point of the problem.

    helper     0.4   the helper function is there, with a `return`
    main       0.6   the main function is there, with a `return`; otherwise no further level counts
    syntax     0.5   the imports of the prompt and both functions parse together; otherwise no further level counts
    tests      1.0   times the share of tests that pass; at 0, or without a helper function, no further level counts
    calls      0.5   the main function calls the helper
    substance  1.0   and is more than a wrapper around it
    ignored   -0.5   but a call is a statement by itself, whose value is lost

Of an answer only the function of the wanted name is kept, without its imports and other functions. The first two levels
go by the text, so that a function that does not parse counts. A wrapper has, without signature, docstring and comments,
no line, one line that starts with `return` and names the helper, or a line `v = aux(...` and then `return v`.

Source: MAGRPO, arXiv 2508.04652, and the authors' code (OpenMLRL/LLM_Collab_Code_Generation). README.md of this plugin
lists where their value is plainly a bug, and ours the intended one.
"""

import ast
import re

FENCE = re.compile(r"```(?:python)?")
DEFINITION = re.compile(r"([ \t]*)def[ \t]+(\w+)")
LINE = re.compile(r"\r?\n")
MOST_LEFT = 20
TOKEN = re.compile(
    r"""(?P<text>(?P<quotes>\"\"\"|''')(?:\\.|(?!(?P=quotes)).)*(?:(?P=quotes)|\Z)"""
    r"""|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?)|(?P<comment>\#[^\n]*)""",
    re.DOTALL,
)


def code_in(text: str) -> str:
    """The functions of an answer, or the text where it has none."""
    lines, number, kept = _lines(text), 0, []
    while number < len(lines):
        block = _block(lines[number:]) if DEFINITION.match(lines[number]) else []
        kept += ["\n".join(block).strip()] if block else []
        number += len(block) or 1
    return "\n\n".join(kept) or text.strip()


def function(text: str, name: str) -> str:
    """The text of the last function of that name in an answer, at any indentation; "" without one.

    It ends before the first line that is not indented deeper, except blank ones; or, if it then parses, comments and
    the first `MOST_LEFT` lines of brackets and texts that began in it.
    """
    lines = _lines(text)
    for number in reversed(range(len(lines))):
        match = DEFINITION.match(lines[number])
        if match and match[2] == name:
            return "\n".join(_block(lines[number:])).rstrip() + "\n"
    return ""


def returns(text: str) -> bool:
    """Whether a function's text has the word `return` outside of texts and comments."""
    return re.search(r"\breturn\b", TOKEN.sub('""', text)) is not None


def parsed(code: str) -> ast.Module | None:
    """The syntax tree of the code; None if it cannot be parsed, is nested too deeply or has a null character."""
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def definition(text: str) -> ast.FunctionDef | None:
    """The syntax tree of a function's text; None if it does not parse."""
    module = parsed(text)
    first = module.body[0] if module is not None and module.body else None
    return first if isinstance(first, ast.FunctionDef) else None


def imports(prompt: str) -> str:
    lines = [line.strip() for line in _lines(prompt)]
    return "\n".join(line for line in lines if line.startswith(("import ", "from ")) and parsed(line) is not None)


def levels(helper: str, main: str, name: str, parses: bool, passed: float | None) -> dict[str, float]:
    """Level -> its reward, in order, up to the last level that is judged; their sum is the reward, up to 4.0.

    `helper` and `main` are texts, "" for a missing function; `name` is that of the helper; `parses`: whether they do,
    together with the imports; `passed`: share of the tests that both together pass, 0 to 1, None without tests.
    """
    rewards = {"helper": 0.4 if returns(helper) else 0.0, "main": 0.6 if returns(main) else 0.0}
    if not rewards["main"]:
        return rewards
    rewards["syntax"] = 0.5 if parses else 0.0
    if not parses or passed is None:
        return rewards
    rewards["tests"] = passed
    tree = definition(main)
    if passed and helper and tree is not None:
        rewards["calls"] = 0.5 if calls(tree, name) else 0.0
        if rewards["calls"]:
            rewards["substance"] = 0.0 if wrapper(tree, main, name) else 1.0
            rewards["ignored"] = -0.5 if ignored(tree, name) else 0.0
    return rewards


def calls(tree: ast.AST, name: str) -> bool:
    return any(is_call(node, name) for node in ast.walk(tree))


def is_call(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def ignored(tree: ast.FunctionDef, name: str) -> bool:
    return any(isinstance(node, ast.Expr) and is_call(node.value, name) for node in ast.walk(tree))


def wrapper(tree: ast.FunctionDef, text: str, name: str) -> bool:
    """Whether a function only passes on what `name` returns, by its lines (module docstring)."""
    body = tree.body[1:] if ast.get_docstring(tree) is not None else tree.body
    if not body or body[0].lineno == tree.lineno:
        return True
    code = TOKEN.sub(lambda match: "" if match["comment"] else match[0], text).split("\n")[body[0].lineno - 1 :]
    lines = [line.strip() for line in code if line.strip()]
    if len(lines) == 1:
        return re.match(rf"return\b.*\b{name}\b", lines[0]) is not None
    held = re.match(rf"(\w+)\s*=\s*{name}\s*\(", lines[0])
    return len(lines) == 2 and held is not None and lines[1] == f"return {held[1]}"


def _lines(text: str) -> list[str]:
    return LINE.split(FENCE.sub("", text))


def _block(lines: list[str]) -> list[str]:
    """The lines of the function that begins with the first line, without its indentation."""
    indent = _indent(lines[0])
    ends = [n for n, line in enumerate(lines) if n and line.strip() and _indent(line) <= indent] + [len(lines)]
    code = [end for end in ends if not "".join(lines[end : end + 1]).lstrip().startswith("#")]
    for end in (*code[:MOST_LEFT], ends[0]):
        block = [line[min(indent, _indent(line)) :] for line in lines[:end]]
        if parsed("\n".join(block)) is not None:
            break
    return block


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))
