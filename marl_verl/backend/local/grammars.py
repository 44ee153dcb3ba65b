"""Completions that a grammar restricts (`response_format`, a forced `tool_choice`), as in vLLM: before a token is drawn
the logits of tokens with which the text cannot continue are -inf. xgrammar, imported when needed, knows them."""

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any

import torch

from marl_verl.errors import user_error


class Grammars:
    """The grammars of a model with `size` logits, which may be more than its tokenizer has tokens."""

    def __init__(self, tokenizer: Any, size: int) -> None:
        self._tokenizer, self._size = tokenizer, size

    @cached_property
    def _compiler(self) -> Any:
        import xgrammar

        words = xgrammar.TokenizerInfo.from_huggingface(self._tokenizer, vocab_size=self._size)
        return xgrammar.GrammarCompiler(words)  # compiles equal grammars once

    def matcher(self, restriction: Any, stop: Collection[int]) -> Any:
        """xgrammar's matcher of a completion, which ends with a token of `stop`, from vLLM's `StructuredOutputsParams`.
        MarlError for a JSON schema that xgrammar cannot express."""
        import xgrammar

        with user_error(f"backend=local does not support the JSON schema {restriction.json}", TypeError, ValueError):
            grammar = self._compiler.compile_grammar(restriction.grammar)
        return xgrammar.GrammarMatcher(grammar, override_stop_tokens=sorted(stop) or None)


def restrict(logits: torch.Tensor, matchers: Sequence[Any]) -> None:
    """Mask the logits, [rows, size], with each row's matcher; None allows all tokens."""
    if rows := [row for row, matcher in enumerate(matchers) if matcher is not None and not matcher.is_terminated()]:
        import xgrammar

        allowed = xgrammar.allocate_token_bitmask(len(matchers), logits.shape[1])
        for row in rows:
            matchers[row].fill_next_token_bitmask(allowed, row)
        xgrammar.apply_token_bitmask_inplace(logits, allowed.to(logits.device), indices=rows)
