"""One token for each row of logits, as vLLM's sampler draws it: equal seeds give equal tokens.

    logits / temperature, min_p, top_k, top_p -> probabilities p;  q ~ Exp(1) from the row's generator;  argmax p / q

The log-prob is that of the distribution that the token is drawn from (verl's `logprobs_mode: processed_logprobs`), and
for greedy rows, temperature 0, that of the model.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from tokenizers.decoders import DecodeStream
from torch import Generator, Tensor

from marl_verl.errors import MarlError

GREEDY_BELOW, LEAST_TEMPERATURE = 1e-5, 1e-2  # vLLM's
SUPPORTED = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "logprobs"),
    *("max_tokens", "stop", "stop_token_ids", "structured_outputs"),
)
NEUTRAL = {"repetition_penalty": 1.0}  # values without an effect


@dataclass
class Draw:
    """How a row's tokens are drawn; `generator` is None for greedy rows."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    generator: Generator | None = None

    @classmethod
    def of(cls, parameters: Mapping[str, Any], device: torch.device) -> "Draw":
        """From vLLM's parameters. Not repeatable without `seed`."""
        temperature, seed = parameters.get("temperature", 1.0), parameters.get("seed")
        if temperature < GREEDY_BELOW:
            return cls()
        generator = Generator(device)
        if seed is None:
            generator.seed()
        else:
            generator.manual_seed(seed)
        top_k, top_p = max(parameters.get("top_k", 0), 0), parameters.get("top_p", 1.0)
        return cls(max(temperature, LEAST_TEMPERATURE), top_k, top_p, parameters.get("min_p", 0.0), generator)


def check_supported(parameters: Mapping[str, Any]) -> None:
    """MarlError for a sampling parameter that would have no effect."""
    for name, value in parameters.items():
        if name not in SUPPORTED and value is not None and NEUTRAL.get(name) != value:
            problem = f"the local backend does not support the sampling parameter {name}={value!r}"
            raise MarlError(f"{problem}: use the verl backend (marl.run.backend=verl)")


def sample(logits: Tensor, rows: Sequence[Draw]) -> tuple[Tensor, Tensor]:
    """(tokens, their log-probs), both [rows], of `logits`, [rows, vocabulary] in float32, which are overwritten."""
    greedy = logits.argmax(-1) if any(row.generator is None for row in rows) else None
    column = partial(_column, rows, logits.device)
    if any(row.temperature != 1 for row in rows):
        logits.div_(column("temperature"))
    if any(row.min_p > 0 for row in rows):
        probabilities = logits.softmax(-1)
        least = probabilities.amax(-1, keepdim=True).mul_(column("min_p"))
        logits.masked_fill_(probabilities < least, -torch.inf)
    _keep_top(logits, rows, column)
    tokens = greedy
    if any(row.generator is not None for row in rows):
        probabilities = logits.softmax(-1)
        noise = torch.ones_like(probabilities)
        for row, place in zip(rows, noise, strict=True):
            if row.generator is not None:
                place.exponential_(generator=row.generator)
        tokens = probabilities.div_(noise).argmax(-1)
        if greedy is not None:
            drawn = torch.tensor([row.generator is not None for row in rows], device=logits.device)
            tokens = torch.where(drawn, tokens, greedy)
    assert tokens is not None
    return tokens, logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0]


def _column(rows: Sequence[Draw], device: torch.device, name: str) -> Tensor:
    """A parameter of all rows, [rows, 1]."""
    return torch.tensor([[getattr(row, name)] for row in rows], dtype=torch.float32, device=device)


def _keep_top(logits: Tensor, rows: Sequence[Draw], column: Callable[[str], Tensor]) -> None:
    """Set logits outside of a row's `top_k` and `top_p` to -inf. Those equal to the last of `top_k` stay."""
    size = logits.shape[1]
    some_k, some_p = any(0 < row.top_k < size for row in rows), any(row.top_p < 1 for row in rows)
    if not (some_k or some_p):
        return
    counts = torch.tensor([[row.top_k if 0 < row.top_k < size else size] for row in rows], device=logits.device)
    if not some_p:
        most = int(max(row.top_k for row in rows if row.top_k < size))
        border = logits.topk(most).values.gather(1, counts.clamp(max=most) - 1)
        logits.masked_fill_((logits < border) & (counts < size), -torch.inf)
        return
    ordered, order = logits.sort(-1)
    if some_k:
        ordered.masked_fill_(ordered < ordered.gather(1, size - counts), -torch.inf)
    before = ordered.softmax(-1).cumsum(-1) <= 1 - column("top_p")
    before[:, -1] = False  # at least one
    logits.scatter_(1, order, ordered.masked_fill_(before, -torch.inf))


class Stop:
    """The stop tokens and stop strings of one completion, which is decoded token by token after its prompt."""

    def __init__(self, strings: Sequence[str], tokens: Collection[int], tokenizer: Any, prompt: Sequence[int]) -> None:
        self._strings, self._tokens, self._text = strings, frozenset(tokens), ""
        if strings:
            self._tokenizer = tokenizer.backend_tokenizer
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
