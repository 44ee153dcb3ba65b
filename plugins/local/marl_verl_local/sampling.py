"""Completions that grow by one token a step, drawn as vLLM's sampler draws them: equal seeds give equal tokens.

    logits / temperature, min_p, top_k, top_p -> probabilities p;  q ~ Exp(1) from the row's generator;  argmax p / q

The log-prob is that of the distribution that the token is drawn from (verl's `logprobs_mode:
processed_logprobs`), and for greedy rows, temperature 0, that of the model.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tokenizers.decoders import DecodeStream
from torch import Generator, Tensor
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

GREEDY_BELOW, LEAST_TEMPERATURE = 1e-5, 1e-2  # vLLM's
FILTERS = {
    "temperature": (TemperatureLogitsWarper, 1.0),
    "min_p": (MinPLogitsWarper, 0.0),
    "top_k": (TopKLogitsWarper, 0),
    "top_p": (TopPLogitsWarper, 1.0),
}
"""Parameter, in the order of application -> what applies it, and its value without an effect."""


class Row:
    """A completion in progress, with vLLM's sampling parameters; `limit`: of sampled tokens.

    Attributes:
        last, position: the token that the next step computes, and its position.
        length: the most tokens that it may have in the cache.
        ids, log_probs: of what is sampled.
    """

    order: tuple[int, str, int]  # rows of lower order are admitted first
    future: asyncio.Future[list[int]]  # of `ids`

    def __init__(
        self, prompt: Sequence[int], parameters: Mapping[str, Any], limit: int, tokenizer: Any, device: torch.device
    ) -> None:
        self.prompt, self.limit = tuple(prompt), limit
        self.last, self.position, self.length = self.prompt[-1], len(prompt) - 1, len(prompt) + limit
        self.ids, self.log_probs = list[int](), list[float]()
        self._strings, self._ends = parameters.get("stop") or (), {*(parameters.get("stop_token_ids") or ())}
        if self._strings:
            self._tokenizer, self._text = tokenizer.backend_tokenizer, ""
            self._stream = DecodeStream(ids=list(prompt), skip_special_tokens=True)
        self.filters: tuple[tuple[str, float], ...] = ()
        self.generator: Generator | None = None  # None draws greedily
        if (temperature := float(parameters.get("temperature", 1.0))) >= GREEDY_BELOW:
            values = {**parameters, "temperature": max(temperature, LEAST_TEMPERATURE)}
            values["top_k"] = max(parameters.get("top_k", 0), 0)  # vLLM's -1: all
            wanted = [(name, values.get(name, neutral), neutral) for name, (_, neutral) in FILTERS.items()]
            self.filters = tuple((name, value) for name, value, neutral in wanted if value != neutral)
            self.generator = Generator(device)
            if (seed := parameters.get("seed")) is None:
                self.generator.seed()
            else:
                self.generator.manual_seed(seed)

    def add(self, token: int, log_prob: float) -> bool:
        """Append a sampled token. Returns whether it is the last one."""
        self.ids.append(token)
        self.log_probs.append(log_prob)
        self.last, self.position = token, self.position + 1
        return token in self._ends or self._ends_with_string(token) or len(self.ids) >= self.limit

    def _ends_with_string(self, token: int) -> bool:
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


def sample(logits: Tensor, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """(tokens, their log-probs), both [rows], of `logits`, [rows, vocabulary] in float32, which are overwritten."""
    tokens = logits.argmax(-1)
    places: dict[tuple[tuple[str, float], ...], list[int]] = {}
    for place, row in enumerate(rows):
        if row.filters:
            places.setdefault(row.filters, []).append(place)
    for filters, equal in places.items():
        filtered = logits[equal]
        for name, value in filters:
            filtered = FILTERS[name][0](value)(None, filtered)
        logits[equal] = filtered
    drawn = [place for place, row in enumerate(rows) if row.generator is not None]
    if drawn:
        probabilities = logits[drawn].softmax(-1)
        noise = torch.empty_like(probabilities)
        for place, values in zip(drawn, noise, strict=True):
            values.exponential_(generator=rows[place].generator)
        tokens[drawn] = probabilities.div_(noise).argmax(-1)
    return tokens, logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0]
