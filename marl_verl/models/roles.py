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
        probes = [_probe(message, n) for n, message in enumerate(messages)]
        shape = (bool(tools), *((probe["role"], *_texts(probe)) for probe in probes))
        if shape in self._checked:
            return
        for role in (message["role"] for message in messages):
            if not re.fullmatch(r"[\w.-]+", role):
                raise MarlError(f"{self._whose}: a role must be a word, got {role!r:.80}: {nearest(role, ROLES)}")
        try:
            prompt = self._apply(probes, tools)
        except MarlError:  # it says why when it renders their own texts
            return
        for probe in probes:
            if any(text not in prompt for text in _texts(probe)):
                role, part = probe["role"], "tool calls" if probe.get("tool_calls") else "a message"
                remedy = "set model.custom_chat_template to one that renders them"
                hint = remedy if role in ROLES else f"{remedy}, or use another role ({nearest(role, ROLES)})"
                raise MarlError(f"{self._whose}: the chat template leaves out {part} of role '{role}': {hint}")
        self._checked.add(shape)


def _probe(message: dict[str, Any], n: int) -> dict[str, Any]:
    """Message n with other texts as its content, if it has one, and as the names of its tool calls."""
    probe = {**message, "content": f"probe{n}x" if message["content"].strip() else ""}
    if calls := message.get("tool_calls"):
        functions = [{**call["function"], "name": f"probe{n}call{k}x"} for k, call in enumerate(calls)]
        probe["tool_calls"] = [{**call, "function": named} for call, named in zip(calls, functions, strict=True)]
    return probe


def _texts(probe: Mapping[str, Any]) -> list[str]:
    """The texts of a probe that must be in the prompt."""
    return [call["function"]["name"] for call in probe.get("tool_calls") or ()] or [probe["content"]]
