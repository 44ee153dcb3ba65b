"""Chat templates: how messages become a prompt, and which tokens and texts end an action.

The rollout clients, the checks before a start and the evaluation use this module, so that all render the same prompt.

A template without a system role (Gemma's) raises an error for a system message, or leaves it out. System messages at
the start of a conversation are then folded into the first user message:

    system: Be brief.  user: 2 + 2?    ->    user: Be brief.\\n\\n2 + 2?

Messages that a template leaves out are refused. A tokenizer encodes the text of a control token such as `<|im_end|>` as
that token, also inside a message. So that no agent can write the turns of another, a space follows the first character
of such a text in a message or tool:

    Say <|im_end|>   ->   Say < |im_end|>
"""

import copy
import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from marl_verl.episode.messages import Observation, as_observation, call_arguments
from marl_verl.errors import MarlError, nearest
from marl_verl.errors import check as refuses
from marl_verl.team import AgentConfig

PROBE = "instructions of an agent"
TALK = [{"role": role, "content": f"a text of the {role}"} for role in ("user", "assistant", "user")]
ROLES = ("system", "user", "assistant", "tool")
MARKUP = re.compile(r"[<\[|｜].*\w.*[>\]|｜]", re.DOTALL)
INNER = re.compile(
    r"(?!.*(response|output|result)).*(think|reason|answer|tool.?call|tool.?sep|function|param|arg_|invoke)",
    re.IGNORECASE | re.DOTALL,
)
"""Added tokens that models write inside their replies, such as <think> and <tool_call>, stay tokens."""
PASSES = 8  # control tokens that overlap are broken one after the other


class Chat:
    """A tokenizer with its chat template.

    Args:
        options: variables of the template (`apply_chat_template_kwargs`), such as `enable_thinking`.
        whose: begins error messages, e.g. "policy 'solver' (model 'Qwen/Qwen3-8B')".
    """

    def __init__(self, tokenizer: Any, options: Mapping[str, Any], whose: str) -> None:
        self.tokenizer, self.options, self.whose = tokenizer, options, whose
        if not tokenizer.chat_template:
            raise MarlError(f"{whose}: the tokenizer has no chat template. Use a chat model.")
        self.folds = False
        instructed = [{"role": "system", "content": PROBE}, {"role": "user", "content": "task"}]
        self.folds = PROBE not in (self._rendered(instructed) or "")
        self.controls = ControlTokens(tokenizer, self._rendered(TALK) or str(tokenizer.chat_template))
        self._checked = set[Any]()  # shapes of conversations
        self._encode = functools.lru_cache(maxsize=4096)(self._encode_json)
        # stop strings are compared with the text, which has no special tokens
        self.special = {str(token): id for id, token in tokenizer.added_tokens_decoder.items() if token.special}

    @classmethod
    def load(cls, model: Mapping[str, Any], options: Mapping[str, Any], whose: str, **where: Any) -> "Chat":
        """The chat of verl's `model` section: `path`, `tokenizer_path`, `trust_remote_code`, `custom_chat_template`.

        MarlError if it has no chat template, and what transformers raises if the tokenizer cannot be loaded. `where`
        are further arguments of transformers, such as `local_files_only`.
        """
        path, trusted = str(model.get("tokenizer_path") or model["path"]), bool(model.get("trust_remote_code"))
        changed = tuple(sorted(file.stat().st_mtime_ns for file in Path(path).expanduser().glob("*")))
        tokenizer = copy.copy(_tokenizer(path, changed, trust_remote_code=trusted, **where))
        return cls(with_template(tokenizer, model), options, f"{whose} (model '{model['path']}')")

    def render(
        self, messages: Iterable[Mapping[str, Any]], tokenize: bool = False, tools: Sequence[Any] | None = None
    ) -> Any:
        """The prompt of a conversation, with the generation prompt, as text or ids. MarlError if it is refused."""
        conversation = [_for_template(message) for message in messages]
        self._check_roles(conversation, tools)
        return self._apply(self.controls.broken(conversation), self.controls.broken(tools), tokenize)

    @refuses
    def _check_roles(self, messages: Sequence[dict[str, Any]], tools: Sequence[Any] | None) -> Iterator[str]:
        """MarlError if the template would leave out a message or a tool call, checked once for each shape of a
        conversation, with other texts. Many leave out a text beside calls."""
        probes = [_probe(message, n) for n, message in enumerate(messages)]
        shape = (bool(tools), *((probe["role"], *texts) for probe, texts in probes))
        if shape in self._checked:
            return
        for role in (message["role"] for message in messages):
            if not re.fullmatch(r"[\w.-]+", role):
                yield f"{self.whose}: a role must be a word, got {role!r:.80}: {nearest(role, ROLES)}"
        if (prompt := self._rendered([probe for probe, _ in probes], tools)) is None:
            return  # the error says why when it renders their own texts
        for probe, texts in probes:
            if any(text not in prompt for text in texts):
                role, part = probe["role"], "tool calls" if probe.get("tool_calls") else "a message"
                remedy = "set model.custom_chat_template to one that renders them"
                hint = remedy if role in ROLES else f"{remedy}, or use another role ({nearest(role, ROLES)})"
                yield f"{self.whose}: the chat template leaves out {part} of role '{role}': {hint}"
        self._checked.add(shape)

    def _apply(self, given: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None, tokenize: bool = False) -> Any:
        if tools and not self.takes_tools:
            remedy = "set model.custom_chat_template to one that does"
            raise MarlError(f"{self.whose}: the chat template does not render tools: {remedy}")
        try:
            return self.tokenizer.apply_chat_template(
                folded(given) if self.folds else list(given),
                add_generation_prompt=True,
                tokenize=tokenize,
                return_dict=False,
                **({"tools": list(tools)} if tools else {}),
                **self.options,
            )
        except Exception as error:  # a template is a program, which may raise anything
            roles = ", ".join(message["role"] for message in given)
            problem = f"the chat template refuses a conversation of {roles} ({type(error).__name__}: {error})"
            remedy = "change the messages, or set model.custom_chat_template"
            raise MarlError(f"{self.whose}: {problem}: {remedy}") from error

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        begun: Sequence[int] = (),
        reply: int = 0,
    ) -> list[int]:
        """Token ids of a conversation with the generation prompt. As `render`; results are cached.

        Args:
            begun: token ids of an earlier prompt and its response. If their text is the beginning of the prompt, they
                are the beginning of its ids: what a model sampled is not tokenised again.
            reply: how many of them, the last, are a reply that is one of the messages. Its text may have other white
                space in the prompt, since parsers and templates strip its parts and format its calls.
        """
        return self._encode(json.dumps([list(messages), tools]), tuple(begun), reply)

    def _encode_json(self, text: str, begun: tuple[int, ...], reply: int) -> list[int]:
        messages, tools = json.loads(text)
        if begun and (extended := self._extended(begun, reply, messages, tools)) is not None:
            return extended
        return self.render(messages, tokenize=True, tools=tools)

    def _extended(
        self, begun: Sequence[int], reply: int, messages: Sequence[Any], tools: Sequence[Any] | None
    ) -> list[int] | None:
        """`begun` and the ids of the rest of a prompt; None if that has another text, e.g. without former reasoning."""
        text = self.render(messages, tools=tools)
        decode = functools.partial(self.tokenizer.decode, clean_up_tokenization_spaces=False)
        # ids of another policy's tokenizer may be unknown to this one, which leaves them out of the text
        if max(begun) >= len(self.tokenizer):
            return None
        start, shown = decode(begun), decode(begun[: len(begun) - reply])
        end = len(start) if text.startswith(start) else _end(text, shown, start) if reply else None
        if end is None or self.controls.pattern.findall(text[:end]) != self.controls.texts(begun):
            return None
        ids = [*begun, *self.tokenizer(text[end:], add_special_tokens=False)["input_ids"]]
        return ids if decode(ids) == start + text[end:] else None  # some tokenizers begin a text with a space

    @functools.cached_property
    def takes_tools(self) -> bool:
        """Whether the template has the variable `tools`."""
        return re.search(r"\btools\b", self.tokenizer.get_chat_template()) is not None

    def _rendered(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None) -> str | None:
        """A conversation as the template renders it; None if it refuses that."""
        try:
            return str(self._apply(messages, tools))
        except MarlError:
            return None

    def check(
        self, agent: AgentConfig, observations: Sequence[Observation] = (), tools: Sequence[Any] | None = None
    ) -> None:
        """MarlError if the template refuses one of the agent's observations (default: a single user message).

        Empty messages are filled in: some templates refuse them, and the actions of a rehearsal are empty.
        """
        for observation in observations or [as_observation("task")]:
            try:
                seen = agent.conversation(observation)
                self.render(({**message, "content": message["content"] or "text"} for message in seen), tools=tools)
            except MarlError as error:
                raise MarlError(f"agent '{agent.name}' of {error}") from error

    @refuses
    def check_options(self, names: Iterable[str], where: str) -> Iterator[str]:
        """MarlError for a variable that the template does not have: it would have no effect."""
        known = set(re.findall(r"\w+", self.tokenizer.get_chat_template()))
        for name in names:
            if name not in known:
                near = nearest(name, known)
                hint = near if near.startswith("did") else "remove it"
                yield f"unknown key '{where}.{name}': the chat template of {self.whose} lacks it: {hint}"

    def stops(self, given: Sequence[str]) -> tuple[list[str], list[int]]:
        """(stop strings, ids of stop tokens): a stop string that is a special token is no part of the text."""
        texts = [text for text in given if text not in self.special]
        return texts, [self.special[text] for text in given if text in self.special]


class ControlTokens:
    """The control tokens of a tokenizer and its chat template, and their texts in messages: the special tokens, and
    other added tokens that begin or end turns, such as `<｜User｜>`, except `INNER`.

    Args:
        written: turns of a user and an assistant as the template renders them.
    """

    def __init__(self, tokenizer: Any, written: str) -> None:
        added = tokenizer.added_tokens_decoder
        self.ids = {id: text for id, token in added.items() if _is_control(text := str(token), token.special, written)}
        self.pattern = _any_of(self.ids.values())
        # tokens that are compared with the normalised text
        normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
        self._normalise: Callable[[str], str] = getattr(normalizer, "normalize_str", str)
        texts = [self._normalise(text).strip("▁") for id, text in self.ids.items() if added[id].normalized]
        self._normalised = _any_of(texts) if texts and normalizer is not None else None

    def texts(self, ids: Iterable[int]) -> list[str]:
        """The control tokens among token ids."""
        return [self.ids[id] for id in ids if id in self.ids]

    def broken(self, value: Any) -> Any:
        """A message or tool, with a space in each text of a control token."""
        if isinstance(value, Mapping):
            return {self.broken(key): self.broken(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.broken(item) for item in value]
        if not isinstance(value, str):
            return value
        for _ in range(PASSES):
            value, breaks = self.pattern.subn(lambda match: f"{match[0][0]} {match[0][1:]}", value)
            if not breaks:
                break
        if self._normalised and self._normalised.search(self._normalise(value)):  # in other letters, such as NFKC's
            value = re.sub(r"(\S)(?=\S)", r"\1 ", value)
        return value


def _is_control(text: str, special: bool, written: str) -> bool:
    """Whether an added token is one; a single character is ordinary text."""
    inside = text not in written or not MARKUP.fullmatch(text) or INNER.match(text)
    return len(text) > 1 and (special or not inside)


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """A pattern of any of some texts, the longest first; it matches nothing without a text."""
    return re.compile("|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True)) or r"(?!)")


def _end(text: str, shown: str, start: str) -> int | None:
    """Where a text's beginning ends: `shown`, then the rest of `start` with other white space; None without it."""
    if not (text.startswith(shown) and start.startswith(shown)):
        return None
    at = len(shown)
    for letter in "".join(start[at:].split()):
        while text[at : at + 1].isspace():
            at += 1
        if text[at : at + 1] != letter:
            return None
        at += 1
    return at


def _probe(message: dict[str, Any], n: int) -> tuple[dict[str, Any], list[str]]:
    """(message n with other texts as its content, if it has one, and as the names of its tool calls; the texts of it
    that must be in the prompt)."""
    text, calls = f"probe{n}x" if message["content"].strip() else "", []
    for k, call in enumerate(message.get("tool_calls", ())):
        calls.append({**call, "function": {**call["function"], "name": f"probe{n}call{k}x"}})
    texts = [call["function"]["name"] for call in calls] or [text]
    return {**message, "content": text, **({"tool_calls": calls} if calls else {})}, texts


def _for_template(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as templates take it: the arguments of its tool calls as values, not as a JSON text."""
    calls = [
        {**call, "function": {**call["function"], "arguments": call_arguments(call)}}
        for call in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls} if calls else dict(message)


@functools.lru_cache(maxsize=4)
def _tokenizer(path: str, changed: tuple[int, ...], **where: Any) -> Any:
    """A tokenizer, loaded once for all policies and checks, until a file of it has `changed`."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path, **where)


def with_template(tokenizer: Any, model: Mapping[str, Any]) -> Any:
    """The tokenizer, with `custom_chat_template` of verl's `model` section where it is set."""
    if model.get("custom_chat_template"):
        tokenizer.chat_template = model["custom_chat_template"]
    return tokenizer


def folded(messages: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """A conversation whose leading system messages are the beginning of its first user message."""
    first = next((n for n, message in enumerate(messages) if message["role"] != "system"), len(messages))
    texts, rest = [message["content"] for message in messages[:first]], list(messages[first:])
    if texts and rest and rest[0]["role"] == "user":
        texts.append(rest.pop(0)["content"])
    return [{"role": "user", "content": "\n\n".join(texts)}, *rest] if texts else rest


def first_stop(text: str, stop: Sequence[str]) -> str | None:
    """The stop string that is complete first in a text, as vLLM has it; None without one."""
    ends = {stop_text: at + len(stop_text) for stop_text in stop if (at := text.find(stop_text)) >= 0}
    return min(ends, key=ends.__getitem__, default=None)


def before_stop(text: str, stop: Sequence[str]) -> str | None:
    """The text before the stop string that is complete first; None without one."""
    first = first_stop(text, stop)
    return None if first is None else text[: text.find(first)]
