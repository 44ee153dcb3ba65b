"""vLLM's parsers of tool calls and reasoning, and its structured outputs; the only module that imports these of vLLM.

Which parser fits is a property of the model: it is found in its chat template, or set by `tool_parser` of the policy.
Importing vLLM takes seconds, so it is imported by the first request with tools or a response format.
"""

import functools
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from marl_verl.episode.messages import call_arguments, json_value, tool_names
from marl_verl.errors import check

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
"""(a text in the chat template, vLLM's parser of the model family), the most specific first. A response
with one of the texts has begun a call."""
CUT = "a tool call that is cut off"


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
        options: variables of the chat template, such as `enable_thinking`, which reasoning parsers read.
    """

    def __init__(
        self,
        tokenizer: Any,
        tool: str | None,
        reasoning: str | None,
        whose: str,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        template = str(tokenizer.chat_template)
        self.tool = tool or next((name for text, name in FAMILIES if text in template), None)
        self.reasoning, self.whose, self._words, self._options = reasoning, whose, tokenizer, dict(options or {})

    @check
    def check(self, parameters: Mapping[str, Any]) -> Iterator[str]:
        """MarlError if a response to these parameters of an act may have calls that no parser reads."""
        if self.tool is None and tool_names(parameters) and parameters.get("tool_choice") is None:
            problem = f"{self.whose} has a chat template of no known family of tool calls"
            yield f"{problem}: set tool_parser of the policy to one of vLLM's parsers, e.g. hermes"

    def parse(self, text: str, raw: str, parameters: Mapping[str, Any], opening: str = "", cut: bool = False) -> Parsed:
        """Parse a completion.

        Args:
            text: the completion without special tokens.
            raw: with special tokens, which some parsers need.
            opening: the end of the prompt, where a template may have closed the reasoning.
            cut: whether it ended at its limit of tokens: a call in it is cut off.
        """
        tools = tool_names(parameters)
        if self.reasoning is None and not tools:
            return Parsed(text)
        request = _request(parameters)
        parsed = Parsed(text)
        if self.reasoning is not None and not restricts(parameters):  # a grammar leaves no room for reasoning
            thought, raw = self._reasoning(raw, request, opening)
            special = [str(token) for token in self._words.all_special_tokens]
            parsed = Parsed(_without(raw, special), _without(thought, special) or None)
        choice = parameters.get("tool_choice")
        if not tools or choice == "none" or (choice is None and restricts(parameters)):
            return parsed
        content, malformed = "", None
        if choice is not None:
            calls = _forced(parsed.text, choice)
            malformed = None if calls else "a tool call that is no complete JSON"
        else:
            self.check(parameters)
            calls, content = self._extracted(raw, request)
            if calls or any(text in raw for text, _ in FAMILIES):
                unread = None if calls else f"a tool call that cannot be parsed (parser {self.tool})"
                malformed = CUT if cut else unread
        malformed = malformed or wrong_call(calls, parameters)
        if malformed or not calls:
            return replace(parsed, malformed=malformed)
        return replace(parsed, text=content, calls=tuple(calls))

    def _reasoning(self, raw: str, request: Any, opening: str) -> tuple[str, str]:
        """(reasoning, the rest). All is the rest if the prompt has closed the reasoning and none is begun again."""
        from vllm.reasoning import ReasoningParserManager

        kind = ReasoningParserManager.get_reasoning_parser(str(self.reasoning))
        parser = kind(self._tokenizer, chat_template_kwargs=self._options)
        marks = (parser.reasoning_start_str, parser.reasoning_end_str)
        if not any(mark and mark in raw for mark in marks) and parser.is_reasoning_end(
            self._words.encode(opening, add_special_tokens=False)
        ):
            return "", raw
        thought, said = parser.extract_reasoning(raw, request)
        return thought or "", said or ""

    def _extracted(self, raw: str, request: Any) -> tuple[list[dict[str, str]], str]:
        """(the tool calls that vLLM's parser finds, the content beside them)."""
        from vllm.tool_parsers import ToolParserManager

        parser = ToolParserManager.get_tool_parser(str(self.tool))(self._tokenizer, request.tools)
        for name in ("vllm.tool_parsers", "vllm.parser"):  # they log the traceback of a call that they cannot read
            logging.getLogger(name).setLevel(logging.CRITICAL)
        try:
            extracted = parser.extract_tool_calls(raw, request)
        except Exception:  # noqa: BLE001  some parsers raise for a call that they cannot read
            return [], raw
        if not extracted.tools_called:
            return [], raw
        calls = [call.function for call in extracted.tool_calls]
        return [{"name": call.name, "arguments": call.arguments} for call in calls], (extracted.content or "").strip()

    @functools.cached_property
    def _tokenizer(self) -> Any:
        from vllm.tokenizers.hf import get_cached_tokenizer  # else each parser would read the whole vocabulary

        return get_cached_tokenizer(self._words)


def wrong_call(calls: Sequence[Mapping[str, str]], parameters: Mapping[str, Any]) -> str | None:
    """Why tool calls cannot be executed: an unknown tool, or arguments that are no JSON object. None if they can."""
    known = tool_names(parameters)
    for call in calls:
        if call["name"] not in known:
            return f"a call of unknown tool '{call['name'][:80]}'"
        if not isinstance(call_arguments({"function": call}), dict):
            return f"a call of {call['name']} with arguments that are no JSON object"
    return None


def _forced(text: str, choice: Any) -> list[dict[str, str]]:
    """The calls of a completion restricted to calls (`tool_choice` required, or a function); none if it was cut off."""
    try:
        values = json_value(text)
        named = [{"name": choice["function"]["name"], "parameters": values}] if choice != "required" else values
        return [{"name": str(call["name"]), "arguments": json.dumps(call["parameters"])} for call in named]
    except (ValueError, KeyError, TypeError):
        return []


def restricts(parameters: Mapping[str, Any]) -> bool:
    """Whether a `response_format` or `tool_choice` restricts the completion, from its first token."""
    return "response_format" in parameters or parameters.get("tool_choice") not in (None, "none")


def structured_outputs(parameters: Mapping[str, Any]) -> Any | None:
    """vLLM's parameter that restricts a completion to a `response_format` or `tool_choice`; None for neither."""
    if not restricts(parameters):
        return None
    if parameters.get("tool_choice") not in (None, "none"):  # goes before a format, as in vLLM
        from vllm.tool_parsers.utils import get_json_schema_from_tools

        request = _request(parameters)
        schema = get_json_schema_from_tools(request.tool_choice, request.tools)
    else:
        wanted = parameters["response_format"]
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
