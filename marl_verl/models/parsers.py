"""vLLM's parsers of tool calls and reasoning, and its structured outputs; the only module that imports these of vLLM.

Which parser fits is a property of the model: it is found in its chat template, or set by `tool_parser` of the policy.
Importing vLLM takes seconds, so it is imported by the first request with tools or a response format.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from marl_verl.episode.messages import tool_names
from marl_verl.errors import MarlError, unknown

FAMILIES = (
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("<｜tool▁calls▁begin｜>", "deepseek_v3"),
    ("<minimax:tool_call>", "minimax_m2"),
    ("<arg_key>", "glm45"),
    ("<function=", "qwen3_coder"),
    ("<tool_call>", "hermes"),  # Qwen2.5, Qwen3, Hermes
    ("[TOOL_CALLS]", "mistral"),
    ("<|python_tag|>", "llama3_json"),
    ('{"name": function name, "parameters"', "llama3_json"),
)
"""(a text in the chat template, vLLM's parser of the model family), the most specific first."""
BEGINS = {"mistral": "[TOOL_CALLS]", "llama3_json": "<|python_tag|>"}
"""What begins a tool call, for parsers that do not say; a text with it and without a call is malformed."""


@dataclass(frozen=True)
class Parsed:
    """Text, reasoning and tool calls of a completion; `malformed`: why it has no tool call, if it began one."""

    text: str
    reasoning: str | None = None
    calls: tuple[dict[str, str], ...] = ()
    malformed: str | None = None


class Parsers:
    """The parsers of one policy.

    Args:
        tool, reasoning: names of vLLM's parsers. Without `tool` it is found by the text of the chat template; without
            `reasoning` the text is not split.
        whose: begins error messages.
    """

    def __init__(self, tokenizer: Any, tool: str | None, reasoning: str | None, whose: str) -> None:
        template = str(tokenizer.chat_template)
        self.tool = tool or next((name for text, name in FAMILIES if text in template), None)
        self.reasoning, self.whose, self._words = reasoning, whose, tokenizer
        self._cached: Any = None

    def parse(self, text: str, raw: str, parameters: Mapping[str, Any]) -> Parsed:
        """Parse a completion.

        Args:
            text: the completion without special tokens.
            raw: with special tokens, which some parsers need.
        """
        if self.reasoning is None and not tool_names(parameters):
            return Parsed(text)
        found = Parsed(text)
        request = _request(parameters)
        if self.reasoning is not None:
            from vllm.reasoning import ReasoningParserManager

            parser = ReasoningParserManager.get_reasoning_parser(self.reasoning)(self._tokenizer())
            thought, said = parser.extract_reasoning(raw, request)
            special = [str(token) for token in self._words.all_special_tokens]
            found, raw = Parsed(_without(said or "", special), _without(thought or "", special) or None), said or ""
        choice = parameters.get("tool_choice")
        if not tool_names(parameters) or choice == "none":
            return found
        if choice is not None:
            return _forced(found, choice, parameters)
        calls, content = self._calls(raw, request, parameters)
        if isinstance(calls, str):
            return replace(found, malformed=calls)
        return replace(found, text=content, calls=tuple(calls)) if calls else found

    def _calls(self, raw: str, request: Any, parameters: Mapping[str, Any]) -> tuple[list[dict[str, str]] | str, str]:
        """(tool calls, or why they are malformed; the content beside them)."""
        from vllm.tool_parsers import ToolParserManager

        if self.tool is None:
            what = f"{self.whose} has a chat template of no known family of tool calls"
            raise MarlError(f"{what}: set tool_parser of the policy to one of vLLM's parsers, e.g. hermes")
        parser = ToolParserManager.get_tool_parser(self.tool)(self._tokenizer())
        extracted = parser.extract_tool_calls(raw, request)
        if not extracted.tools_called:
            begin = getattr(parser, "tool_call_start_token", None) or BEGINS.get(self.tool)
            return (f"a tool call that cannot be parsed (parser {self.tool})" if begin and begin in raw else []), raw
        calls = [{"name": each.function.name, "arguments": each.function.arguments} for each in extracted.tool_calls]
        return wrong_call(calls, parameters) or calls, (extracted.content or "").strip()

    def _tokenizer(self) -> Any:
        if self._cached is None:
            from vllm.tokenizers.hf import get_cached_tokenizer  # else each parser would read the whole vocabulary

            self._cached = get_cached_tokenizer(self._words)
        return self._cached


def wrong_call(calls: Sequence[Mapping[str, str]], parameters: Mapping[str, Any]) -> str | None:
    """Why tool calls cannot be executed: an unknown tool, or arguments that are no JSON object. None if they can."""
    known = tool_names(parameters)
    for call in calls:
        if call["name"] not in known:
            return f"a call of unknown tool '{call['name'][:80]}'"
        try:
            right = isinstance(json.loads(call["arguments"]), dict)
        except ValueError:
            right = False
        if not right:
            return f"a call of {call['name']} with arguments that are no JSON object"
    return None


def _forced(found: Parsed, choice: Any, parameters: Mapping[str, Any]) -> Parsed:
    """The calls of a completion that structured outputs restricted to calls (`tool_choice` required, or a function)."""
    try:
        values = json.loads(found.text)
        named = [{"name": choice["function"]["name"], "parameters": values}] if choice != "required" else values
        calls = [{"name": str(each["name"]), "arguments": json.dumps(each["parameters"])} for each in named]
    except (ValueError, KeyError, TypeError):  # cut at max_tokens
        return replace(found, malformed="a tool call that is no complete JSON")
    if why := wrong_call(calls, parameters):
        return replace(found, malformed=why)
    return replace(found, text="", calls=tuple(calls))


def structured_outputs(parameters: Mapping[str, Any]) -> Any | None:
    """vLLM's parameter that restricts a completion to a `response_format` or `tool_choice`; None for neither."""
    wanted, choice = parameters.get("response_format"), parameters.get("tool_choice")
    if wanted is None and choice in (None, "none"):
        return None
    if wanted is None:
        from vllm.tool_parsers.utils import get_json_schema_from_tools

        request = _request(parameters)
        schema = get_json_schema_from_tools(request.tool_choice, request.tools)
    else:
        schema = wanted["json_schema"]["schema"] if wanted["type"] == "json_schema" else {"type": "object"}
    return _restricted(schema if isinstance(schema, str) else json.dumps(schema))


@functools.lru_cache(maxsize=256)
def _restricted(schema: str) -> Any:
    """A completion in a JSON schema, with the spaces of `json.dumps`. Of itself, vLLM allows any white space between
    two values, and some models then write line breaks up to the limit of tokens. A schema that xgrammar cannot express
    is left to vLLM's other backends."""
    import xgrammar
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.structured_output.backend_xgrammar import has_xgrammar_unsupported_json_features

    if has_xgrammar_unsupported_json_features(json.loads(schema)):
        return StructuredOutputsParams(json=schema)
    try:
        return StructuredOutputsParams(grammar=str(xgrammar.Grammar.from_json_schema(schema, any_whitespace=False)))
    except RuntimeError:
        return StructuredOutputsParams(json=schema)


def _request(parameters: Mapping[str, Any]) -> Any:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    tools = {key: parameters[key] for key in ("tools", "tool_choice") if key in parameters}
    return ChatCompletionRequest(messages=[], model="", **tools)


def _without(text: str, special: Sequence[str]) -> str:
    for token in special:
        text = text.replace(token, "")
    return text.strip()


def check_parser(kind: str, name: str | None, where: str) -> None:
    """MarlError for a name that vLLM's table of parsers lacks; `kind`: tool or reasoning. Does not import vLLM."""
    if name is not None and (known := parser_names(kind)) and name not in known:
        raise MarlError(f"'{where}.{kind}_parser': {unknown(f'{kind} parser of vLLM', name, known)}")


def parser_names(kind: str) -> list[str]:
    """Names of vLLM's parsers, read from its source; empty if vLLM is not installed, or keeps them elsewhere."""
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        return []
    file = Path(found.origin).parent / {"tool": "tool_parsers", "reasoning": "reasoning"}[kind] / "__init__.py"
    if not file.exists():
        return []
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            keys = [key.value for key in node.value.keys if isinstance(key, ast.Constant)]
            if "hermes" in keys or "qwen3" in keys:
                return sorted(map(str, keys))
    return []
