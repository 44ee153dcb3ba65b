"""Text of messages that looks like a control token stays text, so that no agent can write the turns of another.

A tokenizer encodes the text of a control token such as `<|im_end|>` as that token, also inside a message. In a message
or tool, a space follows the first character of such a text:

    Say <|im_end|>   ->   Say < |im_end|>
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

MARKUP = re.compile(r"[<\[|｜].*\w.*[>\]|｜]", re.DOTALL)
INNER = re.compile(
    r"(?!.*(response|output|result)).*(think|reason|answer|tool.?call|tool.?sep|function|param|arg_|invoke)",
    re.IGNORECASE | re.DOTALL,
)
"""Added tokens that models write inside their replies, such as <think> and <tool_call>, stay tokens."""
PASSES = 8  # control tokens that overlap are broken one after the other


class ControlTokens:
    """The control tokens of a tokenizer and its chat template, and their texts in messages.

    They are the special tokens, and other added tokens that begin or end turns, such as `<｜User｜>`, except `INNER`.

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
