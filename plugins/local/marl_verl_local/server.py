"""The sampler of the embedded backend: all requests in flight of one model are rows of one batch.

    generate() -> waiting -> admitted: its prompt is computed, once for equal prompts -> a token per step -> its future

Steps run in the caller's event loop, on the trainer's own weights. Between two steps all other tasks run until none is
ready, and none waits for a call of users' code; one server samples until it has no request, and admits them sorted. So
what is computed together depends on nothing but the requests, and with it the last digits of a row's log-probs.
"""

import asyncio
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from marl_verl.errors import MarlError
from marl_verl.threads import in_progress
from marl_verl_local.cache import ATTENTION, RowCache, token_bytes
from marl_verl_local.sampling import Row, sample

PATIENCE = 5.0  # seconds that a call of users' code is awaited, unless it waits itself: perhaps for a completion
CHUNK = 2048  # at most so many tokens of prompts in one forward, or one prompt


@dataclass(frozen=True)
class Completion:
    """A sampled completion, what ended it included. `log_probs` is empty if they were not asked for."""

    token_ids: list[int]
    log_probs: list[float]
    extra_fields: dict[str, Any]


class LocalServer:
    """Samples with a causal language model of transformers, which may have adapters of peft.

    Its parameters may change in place whenever no request is in flight.

    Args:
        tokenizer: decodes the text in which stop strings are searched; ids beyond it are never sampled.
        max_model_len: limit of prompt and completion together, in tokens.
        max_requests: limit of rows in a step; further requests wait.
        max_cache_bytes: limit of the keys and values of all rows, each as long as the longest may become. A single
            row is always sampled.
        dtype: the type in which the model computes, if its weights have another one.
    """

    grammars = False  # whether a completion can be restricted to a grammar
    version: int | None = None  # version of the weights, which completions carry as `global_steps`
    _numbers = itertools.count()
    _settling: "ClassVar[list[LocalServer]]" = []  # those that wait for other tasks

    def __init__(
        self,
        model: torch.nn.Module,
        tokenizer: Any,
        max_model_len: int,
        max_requests: int = 256,
        max_cache_bytes: int = 1 << 30,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._causal = model.get_base_model() if hasattr(model, "get_base_model") else model
        if not getattr(self._causal, "_supports_attention_backend", False):
            name = type(self._causal).__name__
            raise MarlError(f"the local backend does not support {name}: use the verl backend (marl.run.backend=verl)")
        weight = next(model.parameters())
        self._device, self._dtype, self._casts = weight.device, dtype, dtype not in (torch.float32, weight.dtype)
        self._vocabulary = len(tokenizer)
        self._max_model_len, self._max_requests = max_model_len, max_requests
        self._max_tokens = max_cache_bytes // token_bytes(self._causal.config, weight.itemsize)
        self._waiting: list[Row] = []
        self._rows: list[Row] = []  # the row at place n of the cache
        self._cache = RowCache()
        self._task: asyncio.Task[None] | None = None
        self._number, self._settled, self._seeded = next(self._numbers), 0, False

    async def generate(
        self, request_id: str, *, prompt_ids: Sequence[int], sampling_params: Mapping[str, Any]
    ) -> Completion:
        """Sample a completion with vLLM's `temperature`, `top_p`, `top_k`, `min_p`, `seed`, `logprobs`, `max_tokens`,
        `stop`, `stop_token_ids`. Cancelling it frees its row before the next step. Raises what the model's forward
        raised, in all requests in flight."""
        limit = self._max_model_len - len(prompt_ids)
        limit = min(sampling_params.get("max_tokens") or limit, limit)
        row = Row(prompt_ids, sampling_params, limit, self._tokenizer, self._device)
        row.order = (self._settled, request_id, sampling_params.get("seed") or 0)
        row.future = asyncio.get_running_loop().create_future()
        self._seeded = "seed" in sampling_params
        self._waiting.append(row)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._serve())
        ids = await row.future
        return Completion(ids, row.log_probs if sampling_params.get("logprobs") else [], {"global_steps": self.version})

    async def _serve(self) -> None:
        try:
            while True:
                await self._settle()
                self._remove_finished()
                admitted = self._admit()
                if not self._rows:
                    return
                with self._inference():
                    longest = max(row.position for row in self._rows) + 1
                    self._cache.reserve(len(self._rows), longest, max(row.length for row in self._rows))
                    self._compute_prompts(admitted)
                    self._step()
        except BaseException as error:
            for row in (*self._rows, *self._waiting):
                if isinstance(error, Exception) and not row.future.done():
                    row.future.set_exception(error)
                else:
                    row.future.cancel()
            if not isinstance(error, Exception):
                raise
        finally:
            self._rows, self._waiting, self._cache = [], [], RowCache()

    async def _settle(self) -> None:
        """Let other tasks run until only servers that wait here are ready, and this one is the first of them."""
        loop = asyncio.get_running_loop()
        self._settling.append(self)
        try:
            for _ in range(1000):  # a task that is always ready must not stop it
                await asyncio.sleep(0)
                while self._seeded and in_progress(PATIENCE):
                    time.sleep(0.001)
                    await asyncio.sleep(0)
                waiting = [server for server in self._settling if server._task and server._task.get_loop() is loop]
                if len(getattr(loop, "_ready", ())) < len(waiting) and self is min(waiting, key=lambda s: s._number):
                    break
        finally:
            self._settling.remove(self)
            self._settled += 1

    def _remove_finished(self) -> None:
        """Free the places of rows that are finished or cancelled, and close the gaps with the last rows."""
        kept = [n for n, row in enumerate(self._rows) if not row.future.done()]
        gaps = [n for n, row in enumerate(self._rows[: len(kept)]) if row.future.done()]
        if gaps:
            moved = kept[-len(gaps) :]
            self._cache.move(*(torch.tensor(places, device=self._device) for places in (moved, gaps)))
            for source, target in zip(moved, gaps, strict=True):
                self._rows[target] = self._rows[source]
        del self._rows[len(kept) :]

    def _admit(self) -> list[Row]:
        """Give places to waiting requests, as far as they fit, in order."""
        waiting, self._waiting = sorted(self._waiting, key=lambda row: row.order), []
        first, longest = len(self._rows), max((row.length for row in self._rows), default=0)
        for row in waiting:
            if row.future.done():
                continue
            count, length = len(self._rows) + 1, max(longest, row.length)
            fits = count == 1 or (count <= self._max_requests and count * length <= self._max_tokens)
            if fits and not self._waiting:  # none overtakes another
                self._rows.append(row)
                longest = length
            else:
                self._waiting.append(row)
        return self._rows[first:]

    @contextmanager
    def _inference(self) -> Iterator[None]:
        """Evaluation mode and the attention of the cache; all as before at the end."""
        training = [module for module in self._model.modules() if module.training]
        config = self._causal.config
        attention = config._attn_implementation
        try:
            for module in training:
                module.training = False
            config._attn_implementation = ATTENTION
            with torch.inference_mode(), torch.autocast(self._device.type, self._dtype, enabled=self._casts):
                yield
        finally:
            config._attn_implementation = attention
            for module in training:
                module.training = True

    def _compute_prompts(self, admitted: Sequence[Row]) -> None:
        """Fill the cache with prompts, equal ones computed once, without their last tokens."""
        places: dict[tuple[int, ...], list[int]] = {}
        for n, row in enumerate(admitted, len(self._rows) - len(admitted)):
            if len(row.prompt) > 1:
                places.setdefault(row.prompt[:-1], []).append(n)
        waiting, device = sorted(places, key=len), self._device
        while waiting:
            tokens = len(waiting[-1])
            count = max(1, CHUNK // tokens)
            prompts = waiting[-count:]
            del waiting[-count:]
            ids = torch.tensor([prompt + (0,) * (tokens - len(prompt)) for prompt in prompts], device=device)
            rows = [(place, n) for n, prompt in enumerate(prompts) for place in places[prompt]]
            self._cache.begin_prompts(*torch.tensor(rows, device=device).T)
            positions = torch.arange(tokens, device=device)[None]
            self._causal.base_model(input_ids=ids, position_ids=positions, past_key_values=self._cache, use_cache=True)

    def _step(self) -> None:
        rows, device = self._rows, self._device
        at = [row.position for row in rows]
        seen = max(at) + 1
        positions = torch.tensor(at, device=device)
        self._cache.begin_step(torch.arange(len(rows), device=device), positions, seen)
        mask = torch.arange(seen, device=device) <= positions[:, None, None, None] if min(at) + 1 < seen else None
        ids, places = torch.tensor([[row.last] for row in rows], device=device), positions[:, None]
        cached: dict[str, Any] = {"past_key_values": self._cache, "use_cache": True}
        output = self._causal(input_ids=ids, position_ids=places, attention_mask=mask, **cached)
        logits = output.logits[:, -1].float()
        logits[:, self._vocabulary :] = -torch.inf
        tokens, log_probs = sample(logits, rows)
        for row, token, log_prob in zip(rows, tokens.tolist(), log_probs.tolist(), strict=True):
            if row.add(token, log_prob) and not row.future.done():
                row.future.set_result(row.ids)
