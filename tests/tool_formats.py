"""Tool calls in the formats of vLLM's parsers, as (before, call, between two calls, after)."""

import ast
import importlib.util
import json
from pathlib import Path

COMMAND = "rm -r /tmp/cache/old"
ARGUMENTS = json.dumps({"command": COMMAND, "n": 17})
FUNCTION = f"<function=run>\n<parameter=command>\n{COMMAND}\n</parameter>\n<parameter=n>\n17\n</parameter>\n</function>"
PARAMETERS = (("command", COMMAND), ("n", 17))
INVOKE = "\n".join(
    ['<invoke name="run">', *(f'<parameter name="{key}">{value}</parameter>' for key, value in PARAMETERS), "</invoke>"]
)
KEYS = (
    f"<arg_key>command</arg_key>\n<arg_value>{COMMAND}</arg_value>\n<arg_key>n</arg_key>\n<arg_value>17</arg_value>\n"
)


def tagged(name: str, body: str) -> tuple[str, str, str, str]:
    return "", f"<{name}>\n{body}\n</{name}>", "\n", ""


FORMATS = {  # of the families that a chat template shows
    "deepseek_v3": (
        "<｜tool▁calls▁begin｜>",
        *(f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>run\n```json\n{ARGUMENTS}\n```<｜tool▁call▁end｜>", "\n"),
        "<｜tool▁calls▁end｜>",
    ),
    "hermes": tagged("tool_call", f'{{"name": "run", "arguments": {ARGUMENTS}}}'),
    "glm45": ("", f"<tool_call>run\n{KEYS}</tool_call>", "\n", ""),
    "qwen3_coder": tagged("tool_call", FUNCTION),
    "kimi_k2": (
        "<|tool_calls_section_begin|>",
        *(f"<|tool_call_begin|>functions.run:0<|tool_call_argument_begin|>{ARGUMENTS}<|tool_call_end|>", ""),
        "<|tool_calls_section_end|>",
    ),
    "llama3_json": ("<|python_tag|>", f'{{"name": "run", "parameters": {ARGUMENTS}}}', "; ", ""),
    "minimax_m2": ("<minimax:tool_call>\n", INVOKE, "\n", "\n</minimax:tool_call>"),
    "mistral": ("", f"[TOOL_CALLS]run[ARGS]{ARGUMENTS}", "", ""),
}


def tool_parsers() -> list[str]:
    """Names of vLLM's parsers of tool calls, read from its source, since its import takes seconds."""
    (folder,) = importlib.util.find_spec("vllm").submodule_search_locations or ()
    file = Path(folder) / "tool_parsers" / "__init__.py"
    tables = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Dict)]
    keys = [[key.value for key in table.keys if isinstance(key, ast.Constant)] for table in tables]
    return next(names for names in keys if "hermes" in names)
