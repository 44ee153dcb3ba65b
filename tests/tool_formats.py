"""A tool call in the format of each of vLLM's parsers, as (before, call, between two calls, after)."""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path

COMMAND = "rm -r /tmp/cache/old"
ARGUMENTS = json.dumps({"command": COMMAND, "n": 17})
NAMED = f'{{"name": "run", "arguments": {ARGUMENTS}}}'
PYTHON = f'run(command="{COMMAND}", n=17)'
FUNCTION = f"<function=run>\n<parameter=command>\n{COMMAND}\n</parameter>\n<parameter=n>\n17\n</parameter>\n</function>"
PARAMETERS = (("command", COMMAND), ("n", 17))
INVOKE = "\n".join(
    ['<invoke name="run">', *(f'<parameter name="{key}">{value}</parameter>' for key, value in PARAMETERS), "</invoke>"]
)
KEYS = (
    f"<arg_key>command</arg_key>\n<arg_value>{COMMAND}</arg_value>\n<arg_key>n</arg_key>\n<arg_value>17</arg_value>\n"
)
DSML = (
    f'<｜DSML｜invoke name="run">\n<｜DSML｜parameter name="command" string="true">{COMMAND}</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="n" string="false">17</｜DSML｜parameter>\n</｜DSML｜invoke>'
)
XTML = (
    '<|open|>call tool="run" index="1"<|sep|><|open|>argument key="command" type="string"<|sep|>'
    f'{COMMAND}<|close|>argument<|sep|><|open|>argument key="n" type="number"<|sep|>17<|close|>argument<|sep|>'
    "<|close|>call<|sep|>"
)
MINIMAX = f'<invoke name="run">\n<command>{COMMAND}</command>\n<n>17</n>\n</invoke>'


def tagged(name: str, body: str) -> tuple[str, str, str, str]:
    return "", f"<{name}>\n{body}\n</{name}>", "\n", ""


def namespaced(text: str) -> str:
    """MiniMax M3's tags have a marker before them."""
    return text.replace("<", "]<]minimax[>[<")


FORMATS = {
    "apertus": ("<|tools_prefix|>[", f'{{"run": {ARGUMENTS}}}', ", ", "]<|tools_suffix|>"),
    **dict.fromkeys(
        ("cohere_command3", "cohere_command4"),
        (
            "<|START_ACTION|>[",
            f'{{"tool_call_id": "0", "tool_name": "run", "parameters": {ARGUMENTS}}}',
            ", ",
            "]<|END_ACTION|>",
        ),
    ),
    "deepseek_v3": (
        "<｜tool▁calls▁begin｜>",
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>run\n```json\n{ARGUMENTS}\n```<｜tool▁call▁end｜>",
        "\n",
        "<｜tool▁calls▁end｜>",
    ),
    "deepseek_v31": (
        "<｜tool▁calls▁begin｜>",
        f"<｜tool▁call▁begin｜>run<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜>",
        "",
        "<｜tool▁calls▁end｜>",
    ),
    "deepseek_v32": ("<｜DSML｜function_calls>\n", DSML, "\n", "\n</｜DSML｜function_calls>"),
    "deepseek_v4": ("<｜DSML｜tool_calls>\n", DSML, "\n", "\n</｜DSML｜tool_calls>"),
    "dots": tagged("dots_function_call", INVOKE),
    "functiongemma": (
        "",
        f"<start_function_call>call:run{{command:<escape>{COMMAND}<escape>,n:<escape>17<escape>}}<end_function_call>",
        "",
        "",
    ),
    "gemma4": ("", f'<|tool_call>call:run{{command:<|"|>{COMMAND}<|"|>,n:17}}<tool_call|>', "", ""),
    "gigachat3": ("", f"<|function_call|>{NAMED}", "", ""),
    "granite": ("<|tool_call|>[", NAMED, ", ", "]"),
    "granite-20b-fc": ("", f"<function_call> {NAMED}", "\n", ""),
    **dict.fromkeys(("ernie45", "granite4", "hermes"), tagged("tool_call", NAMED)),
    **dict.fromkeys(("glm45", "glm47", "ling3", "poolside_v1"), ("", f"<tool_call>run\n{KEYS}</tool_call>", "\n", "")),
    **dict.fromkeys(("mimo", "qwen3_coder", "qwen3_xml", "step3p5"), tagged("tool_call", FUNCTION)),
    "hunyuan_a13b": ("<tool_calls>[", NAMED, ", ", "]</tool_calls>"),
    "hy_v3": ("<tool_calls>\n", f"<tool_call>run<tool_sep>\n{KEYS}</tool_call>", "\n", "\n</tool_calls>"),
    "inkling": (
        "",
        f'<|message_model|><|content_invoke_tool_json|>{{"name": "run", "args": {ARGUMENTS}}}<|end_message|>',
        "",
        "",
    ),
    "internlm": (
        "",
        f'<|action_start|><|plugin|>{{"name": "run", "parameters": {ARGUMENTS}}}<|action_end|>',
        "",
        "",
    ),
    "jamba": ("<tool_calls>[\n", NAMED, ",\n", "\n]</tool_calls>"),
    "kimi_k2": (
        "<|tool_calls_section_begin|>",
        f"<|tool_call_begin|>functions.run:0<|tool_call_argument_begin|>{ARGUMENTS}<|tool_call_end|>",
        "",
        "<|tool_calls_section_end|>",
    ),
    "kimi_k3": ("<|open|>tools<|sep|>", XTML, "", "<|close|>tools<|sep|>"),
    "lfm2": ("<|tool_call_start|>[", PYTHON, ", ", "]<|tool_call_end|>"),
    "llama3_json": ("<|python_tag|>", f'{{"name": "run", "parameters": {ARGUMENTS}}}', "; ", ""),
    "llama4_json": ("", f'{{"name": "run", "parameters": {ARGUMENTS}}}', "; ", ""),
    "llama4_pythonic": ("<|python_start|>[", PYTHON, ", ", "]<|python_end|>"),
    "longcat": tagged("longcat_tool_call", NAMED),
    "minicpm5": (
        "",
        f'<function name="run"><param name="command">{COMMAND}</param><param name="n">17</param></function>',
        "\n",
        "",
    ),
    "minimax_m2": ("<minimax:tool_call>\n", INVOKE, "\n", "\n</minimax:tool_call>"),
    "minimax_m3": tuple(map(namespaced, ("<tool_call>\n", MINIMAX, "\n", "\n</tool_call>"))),
    "mistral": ("", f"[TOOL_CALLS]run[ARGS]{ARGUMENTS}", "", ""),
    "muse_glimmer": (
        "<|start|>assistant to=run.run<|message|><atem:function_calls>\n",
        f'<atem:invoke name="run"><atem:parameter name="command" string="true">{COMMAND}</atem:parameter>'
        '<atem:parameter name="n" string="false">17</atem:parameter></atem:invoke>',
        "\n",
        "\n</atem:function_calls><|eom|>",
    ),
    "olmo3": ("<function_calls>\n", PYTHON, "\n", "\n</function_calls>"),
    "phi4_mini_json": ("functools[", NAMED, ", ", "]"),
    "pythonic": ("[", PYTHON, ", ", "]"),
    "seed_oss": tagged("seed:tool_call", FUNCTION),
    "step3": (
        "<｜tool_calls_begin｜>",
        '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="run"><steptml:parameter name="command">'
        f'{COMMAND}</steptml:parameter><steptml:parameter name="n">17</steptml:parameter></steptml:invoke>'
        "<｜tool_call_end｜>",
        "",
        "<｜tool_calls_end｜>",
    ),
    "xlam": ("[", NAMED, ", ", "]"),
}


STUBS = ("openai", "openai_gptoss")
"""Names of vLLM's tables that parse no text."""


def parser_names(kind: str) -> list[str]:
    """Names of vLLM's parsers of tool calls or reasoning, read from its source, since its import takes seconds."""
    (folder,) = importlib.util.find_spec("vllm").submodule_search_locations or ()
    file = Path(folder) / {"tool": "tool_parsers", "reasoning": "reasoning"}[kind] / "__init__.py"
    tables = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Dict)]
    keys = [[key.value for key in table.keys if isinstance(key, ast.Constant)] for table in tables]
    return next(names for names in keys if "hermes" in names or "qwen3" in names)
