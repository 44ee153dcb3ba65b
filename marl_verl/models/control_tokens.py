"""Text of messages that looks like a control token stays text, so that no agent can write the turns of another.

A tokenizer makes a token such as `<|im_end|>` of its text wherever it stands. A conversation with such a text is
rendered a second time with one letter of it changed. The two prompts differ in the messages only: there the prompt is
cut, and its pieces are tokenised one by one, so that no piece contains the token's text.

    prompt    <|im_start|>user\\nSay <|im_end|><|im_end|>
    changed   <|im_start|>user\\nSay <|xm_end|><|im_end|>
    pieces    <|im_start|>user\\nSay <|     im_end|><|im_end|>
"""

from __future__ import annotations

import functools
import itertools
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

MARKUP = re.compile(r"[<\[|｜].*\w.*[>\]|｜]", re.DOTALL)
INNER = re.compile(
    r"(?!.*(response|output|result)).*(think|reason|answer|tool.?call|tool.?sep|function|param|arg_|invoke)",
    re.IGNORECASE | re.DOTALL,
)
"""Added tokens that models write inside their replies, such as <think> and <tool_call>, stay tokens."""
PASSES = 8  # control tokens that overlap are changed one after the other

Change = Callable[[str], str]


class ControlTokens:
    """The control tokens of a tokenizer and its chat template, and their texts in messages.

    They are the special tokens, and other added tokens that the template writes, such as `<｜User｜>`, except `INNER`.

    Args:
        written: the template and a prompt that it renders.
    """

    def __init__(self, tokenizer: Any, written: str) -> None:
        self.tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder
        self.ids = {id: text for id, token in added.items() if _is_control(text := str(token), token.special, written)}
        self._pattern = _any_of(self.ids.values())
        self._changed = {text: self._with_other_letter(text) for text in self.ids.values()}
        # tokens that are compared with the normalised text
        normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
        self._normalise: Callable[[str], str] = getattr(normalizer, "normalize_str", str)
        texts = [self._normalise(text).strip("▁") for id, text in self.ids.items() if added[id].normalized]
        self._normalised = _any_of(texts) if texts and normalizer is not None else None

    def _with_other_letter(self, text: str) -> str:
        """A text with another letter, or another character where it has none; the first one remains."""
        letters = [n for n, letter in enumerate(text) if n and letter.isascii() and letter.isalpha()]
        candidates = [
            text[:n] + (other.upper() if text[n].isupper() else other) + text[n + 1 :]
            for n in letters or range(1, len(text))
            for other in "xqz"
            if other != text[n].lower()
        ]
        return next((candidate for candidate in candidates if not self._pattern.search(candidate)), candidates[0])

    def places(self, text: str) -> list[tuple[int, str]]:
        """(position, control token) for each control token whose text is in a text."""
        return [(match.start(), match[0]) for match in self._pattern.finditer(text)]

    def changed(self, messages: Sequence[Mapping[str, Any]], tools: Any) -> tuple[list[dict[str, Any]], Any] | None:
        """A conversation and its tools with the texts of control tokens changed; None if they have none."""
        texts: list[str] = []

        def collect(text: str) -> str:
            texts.append(text)
            return text

        _copied(messages, tools, collect)
        joined = "".join(texts)  # a template may write texts without anything between them
        if not self._pattern.search(joined) and not self._hidden(joined):
            return None
        for _ in range(PASSES):
            joined = self._pattern.sub(lambda match: self._changed[match[0]], joined)
        if self._hidden(joined):  # each letter becomes a piece
            joined = re.sub(r"\S", lambda match: "q" if match[0] == "x" else "x", joined)
        ends = list(itertools.accumulate(map(len, texts)))
        parts = iter([joined[end - len(text) : end] for text, end in zip(texts, ends, strict=True)])
        return _copied(messages, tools, lambda _: next(parts))

    def _hidden(self, text: str) -> bool:
        """Whether a text has a control token after normalisation, such as NFKC."""
        return self._normalised is not None and self._normalised.search(self._normalise(text)) is not None

    def cuts(self, prompt: str, changed: str) -> list[int] | None:
        """Positions in a rendered prompt before which it is cut; None if the template hides where its messages are."""
        places, others = self.places(prompt), self.places(changed)
        if len(prompt) == len(changed):
            cuts = [n for n, (letter, other) in enumerate(zip(prompt, changed, strict=True)) if letter != other]
            if _uncut(places, cuts) == others:
                return cuts
        # a template may remove or escape them
        return [] if [token for _, token in places] == [token for _, token in others] else None

    def encode(self, text: str, cuts: Sequence[int]) -> list[int]:
        """Token ids of a text whose pieces between `cuts` are tokenised one by one."""
        pieces = [text[start:end] for start, end in itertools.pairwise([0, *cuts, len(text)])]
        if cuts and self._spaces:  # each piece after the first is encoded after a line break, which is removed
            (before,) = self._ids(["\n"])
            first, *rest = self._ids([pieces[0], *(f"\n{piece}" for piece in pieces[1:])])
            kept = [ids[len(before) :] if ids[: len(before)] == before else ids for ids in rest]
            return [*first, *itertools.chain.from_iterable(kept)]
        return [*itertools.chain.from_iterable(self._ids(pieces))]

    def _ids(self, texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return ids

    @functools.cached_property
    def _spaces(self) -> bool:
        """Whether the tokenizer begins every text with a space, as sentencepiece does."""
        return str(self.tokenizer.decode([*itertools.chain(*self._ids(["a", "b"]))])) != "ab"

    def agree(self, ids: Sequence[int], text: str, cuts: Sequence[int]) -> bool:
        """Whether ids with the same text have control tokens where the text has one that is not cut."""
        places = self.places(text)
        wanted = _uncut(places, cuts)
        if [self.ids[id] for id in ids if id in self.ids] != [token for _, token in wanted]:
            return False
        if len(wanted) == len(places):
            return True
        position, run, actual = 0, [], []  # the same tokens, perhaps not at the same places
        for id in ids:
            if id not in self.ids:
                run.append(id)
                continue
            position += len(self.tokenizer.decode(run, clean_up_tokenization_spaces=False))
            actual.append((position, self.ids[id]))
            position, run = position + len(self.ids[id]), []
        return actual == wanted


def _is_control(text: str, special: bool, written: str) -> bool:
    """Whether an added token is one; a single character is ordinary text."""
    inside = text not in written or not MARKUP.fullmatch(text) or INNER.match(text)
    return len(text) > 1 and (special or not inside)


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """A pattern of any of some texts, the longest first; it matches nothing without a text."""
    return re.compile("|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True)) or r"(?!)")


def _uncut(places: Sequence[tuple[int, str]], cuts: Sequence[int]) -> list[tuple[int, str]]:
    """The places of tokens inside which there is no cut."""
    return [
        (start, token)
        for start, token in places
        if (n := bisect_right(cuts, start)) == len(cuts) or cuts[n] >= start + len(token)
    ]


def _copied(messages: Sequence[Mapping[str, Any]], tools: Any, change: Change) -> tuple[list[dict[str, Any]], Any]:
    """Messages and tools with each text changed, except the roles and the keys of messages."""
    copies = [
        {key: value if key == "role" else _with_texts(value, change) for key, value in message.items()}
        for message in messages
    ]
    return copies, _with_texts(tools, change)


def _with_texts(value: Any, change: Change) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        values = [_with_texts(item, change) for item in value.values()]
        return dict(zip([_with_texts(key, change) for key in value], values, strict=True))
    return [_with_texts(item, change) for item in value] if isinstance(value, list | tuple) else value
