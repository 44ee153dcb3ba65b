"""Messages that a chat template leaves out are refused, or sent with another name of their role."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from marl_verl.errors import MarlError, nearest

ROLES = ("system", "user", "assistant", "tool")
OTHER_NAMES = {"function": "tool", "human": "user", "ai": "assistant", "model": "assistant"}
"""Names of roles in other formats -> the names that templates have."""
MOST = 4096
"""Maximum number of conversations' shapes that are remembered."""


class Roles:
    """The roles of one chat template; each shape of a conversation is checked once, with other texts.

    Args:
        apply: renders messages and tools, or raises a MarlError.
        whose: begins error messages.
    """

    def __init__(self, apply: Callable[[Sequence[Mapping[str, Any]], Sequence[Any] | None], str], whose: str) -> None:
        self._apply, self._whose = apply, whose
        self._known: dict[Any, list[str]] = {}

    def rendered(self, messages: Sequence[dict[str, Any]], tools: Sequence[Any] | None) -> list[dict[str, Any]]:
        """The messages with roles that the template renders. MarlError if it would leave one out."""
        shape = (bool(tools), *((message["role"], *_parts(message)) for message in messages))
        if (roles := self._known.get(shape)) is None:
            if len(self._known) >= MOST:
                self._known.clear()
            roles = self._known[shape] = self._checked(messages, tools)
        return [{**message, "role": role} for message, role in zip(messages, roles, strict=True)]

    def _checked(self, messages: Sequence[dict[str, Any]], tools: Sequence[Any] | None) -> list[str]:
        roles = [message["role"] for message in messages]
        if wrong := [role for role in roles if not re.fullmatch(r"[\w.-]+", role)]:
            raise MarlError(f"{self._whose}: a role must be a word, got {wrong[0]!r:.80}: {nearest(wrong[0], ROLES)}")
        left_out = self._left_out(messages, tools)
        if left_out == []:
            return roles
        others = [OTHER_NAMES.get(role, role) for role in roles]
        renamed = [{**message, "role": role} for message, role in zip(messages, others, strict=True)]
        if others != roles and self._left_out(renamed, tools) == []:
            return others
        if left_out:
            role = roles[left_out[0]]
            part = "tool calls" if _parts(messages[left_out[0]])[1] else "a message"
            remedy = "set model.custom_chat_template to one that renders them"
            hint = remedy if role in ROLES else f"{remedy}, or use another role ({nearest(role, ROLES)})"
            raise MarlError(f"{self._whose}: the chat template leaves out {part} of role '{role}': {hint}")
        return roles  # the template refuses them, and says why when it renders their own texts

    def _left_out(self, messages: Sequence[dict[str, Any]], tools: Sequence[Any] | None) -> list[int] | None:
        """Positions of messages whose texts do not change the prompt; None if the template refuses to render them."""
        probes = [_probe(message, f"probe{n}probe") for n, message in enumerate(messages)]
        try:
            text = self._apply(probes, tools)
            hidden = [n for n, message in enumerate(messages) if any(_parts(message)) and f"probe{n}probe" not in text]
            others = [[*probes[:n], _without_calls(probes[n], "other"), *probes[n + 1 :]] for n in hidden]
            return [n for n, other in zip(hidden, others, strict=True) if self._apply(other, tools) == text]
        except MarlError:
            return None


def _parts(message: Mapping[str, Any]) -> tuple[bool, int]:
    """Whether a message has a text, and its number of tool calls."""
    return bool(message["content"].strip()), len(message.get("tool_calls", ()))


def _probe(message: dict[str, Any], text: str) -> dict[str, Any]:
    """A message with another text: its content, or the names of its tool calls."""
    if not message.get("tool_calls"):
        return {**message, "content": text if message["content"].strip() else ""}
    calls = [{**call, "function": {**call["function"], "name": text}} for call in message["tool_calls"]]
    return {**message, "tool_calls": calls}


def _without_calls(message: dict[str, Any], text: str) -> dict[str, Any]:
    """A message without its tool calls, or with another content."""
    if "tool_calls" not in message:
        return _probe(message, text)
    return {key: value for key, value in message.items() if key != "tool_calls"}
