"""Messages that a chat template leaves out are refused."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from marl_verl.errors import MarlError, nearest

ROLES = ("system", "user", "assistant", "tool")


class Roles:
    """The roles of one chat template; each shape of a conversation is checked once, with other texts.

    Args:
        apply: renders messages and tools, or raises a MarlError.
        whose: begins error messages.
    """

    def __init__(self, apply: Callable[[Sequence[Mapping[str, Any]], Sequence[Any] | None], str], whose: str) -> None:
        self._apply, self._whose = apply, whose
        self._checked = set[Any]()

    def check(self, messages: Sequence[dict[str, Any]], tools: Sequence[Any] | None) -> None:
        """MarlError if the template would leave out a message or a tool call. Many leave out a text beside calls."""
        shape = (bool(tools), *((message["role"], *_names(message, 0)) for message in messages))
        if shape in self._checked:
            return
        for role in (message["role"] for message in messages):
            if not re.fullmatch(r"[\w.-]+", role):
                raise MarlError(f"{self._whose}: a role must be a word, got {role!r:.80}: {nearest(role, ROLES)}")
        if left_out := self._left_out(messages, tools):
            message = messages[left_out[0]]
            role, part = message["role"], "tool calls" if message.get("tool_calls") else "a message"
            remedy = "set model.custom_chat_template to one that renders them"
            hint = remedy if role in ROLES else f"{remedy}, or use another role ({nearest(role, ROLES)})"
            raise MarlError(f"{self._whose}: the chat template leaves out {part} of role '{role}': {hint}")
        self._checked.add(shape)

    def _left_out(self, messages: Sequence[dict[str, Any]], tools: Sequence[Any] | None) -> list[int]:
        """Positions of messages whose text or a call does not change the prompt; none if the template refuses them."""
        names = [_names(message, n) for n, message in enumerate(messages)]
        probes = [_probe(message, texts) for message, texts in zip(messages, names, strict=True)]
        hidden: dict[int, list[int]] = {}  # position of a message -> its parts: 0 is its text
        try:
            text = self._apply(probes, tools)
            parts = [(n, part) for n, texts in enumerate(names) for part, name in enumerate(texts) if name not in text]
            for n, part in parts:
                other = _without_call(probes[n], part - 1) if part else {**probes[n], "content": "other"}
                if self._apply([*probes[:n], other, *probes[n + 1 :]], tools) == text:
                    hidden.setdefault(n, []).append(part)
        except MarlError:  # it says why when it renders their own texts
            return []
        return [n for n, parts in hidden.items() if parts != [0] or len(names[n]) == 1]


def _names(message: Mapping[str, Any], n: int) -> list[str]:
    """Other texts for the content of message n, empty if that is, and for each of its tool calls."""
    calls = range(len(message.get("tool_calls", ())))
    return [f"probe{n}probe" if message["content"].strip() else "", *(f"probe{n}call{k}probe" for k in calls)]


def _probe(message: dict[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    """A message with other texts as its content and as the names of its tool calls."""
    calls = [
        {**call, "function": {**call["function"], "name": text}}
        for call, text in zip(message.get("tool_calls", ()), texts[1:], strict=True)
    ]
    return {**message, "content": texts[0], **({"tool_calls": calls} if calls else {})}


def _without_call(message: dict[str, Any], k: int) -> dict[str, Any]:
    calls = [call for n, call in enumerate(message["tool_calls"]) if n != k]
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "tool_calls": calls} if calls else rest
