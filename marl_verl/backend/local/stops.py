"""What ends a completion: a stop token, or a stop string in its text, as vLLM finds it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from tokenizers.decoders import DecodeStream

from marl_verl.errors import MarlError


class Stop:
    """The stop tokens and stop strings of one completion, which is decoded token by token after its prompt.

    MarlError for stop strings without a fast tokenizer.
    """

    def __init__(self, strings: Sequence[str], tokens: Collection[int], tokenizer: Any, prompt: Sequence[int]) -> None:
        self._strings, self._tokens, self._text = strings, frozenset(tokens), ""
        if strings:
            self._tokenizer = getattr(tokenizer, "backend_tokenizer", None)
            if self._tokenizer is None:
                raise MarlError(f"stop strings need a fast tokenizer; {type(tokenizer).__name__} is none")
            self._stream = DecodeStream(ids=list(prompt), skip_special_tokens=True)

    def ends(self, token: int) -> bool:
        """Whether the completion ends with this token, the next of it."""
        if token in self._tokens:
            return True
        if not self._strings:
            return False
        new = self._decode(token)
        self._text += new
        # only where a string may end in the new text
        return bool(new) and any(self._text.find(text, 1 - len(new) - len(text)) >= 0 for text in self._strings)

    def _decode(self, token: int) -> str:
        try:
            return self._stream.step(self._tokenizer, token) or ""
        except Exception as error:
            if not str(error).startswith("Invalid prefix encountered"):
                raise
            self._stream = DecodeStream(skip_special_tokens=True)  # bytes that are no text, as in vLLM
            return self._stream.step(self._tokenizer, token) or ""
