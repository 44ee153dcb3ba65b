"""How a teacher reads rows: a model in this process, the servers of a frozen policy, or an endpoint.

Each returns (log-probs, token ids) of each row of n tokens, [n, max(1, top)], each at the token before it: of the row's
own tokens, or of the `top` likeliest; the last ones mean nothing. The temperature is 1 everywhere, as in verl.
"""

import asyncio
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from marl_verl_endpoints.client import endpoint_key, reported
from torch.nn.utils.rnn import pad_sequence

from marl_verl.errors import MarlError
from marl_verl.team import Endpoint

LOGITS = 1 << 26  # of rows that are read at once in this process: 256 MiB in float32
AT_ONCE, RETRIES = 16, 5  # requests to an endpoint at the same time, and tries of each
PIECES = 32  # tokens, all over the vocabulary, whose text tells tokenizers apart
Scores = Sequence[tuple[torch.Tensor, torch.Tensor]]


def read(teacher: Any, rows: Sequence[torch.Tensor], top: int) -> Scores:
    if teacher.policy.endpoint is not None:
        return of_endpoint(teacher.name, teacher.policy.endpoint, [row.tolist() for row in rows], top)
    if hasattr(teacher, "model"):
        return of_model(teacher.model, rows, top)
    return of_servers(teacher, rows, top)


def of_model(model: Any, rows: Sequence[torch.Tensor], top: int) -> Scores:
    """By forward passes of a model, which is not trained."""
    scores, device = list[tuple[torch.Tensor, torch.Tensor]](), next(model.parameters()).device
    count = max(1, LOGITS // (max(map(len, rows)) * int(model.config.vocab_size)))
    for first in range(0, len(rows), count):
        part = rows[first : first + count]
        with torch.inference_mode():  # padding on the right changes nothing before it
            logits = model(pad_sequence(part, batch_first=True).to(device), use_cache=False).logits
        for row, padded in zip(part, logits.float().log_softmax(-1).cpu(), strict=True):
            values = padded[: len(row)]
            ids = values.topk(top).indices if top else row.roll(-1)[:, None]
            scores.append((values.gather(-1, ids), ids))
    return scores


def of_servers(teacher: Any, rows: Sequence[torch.Tensor], top: int) -> Scores:
    """By the servers of a frozen policy on Ray: vLLM's log-probs of prompts."""
    client = teacher.client()
    asked = {"max_tokens": 1, "temperature": 1.0, "prompt_logprobs": top, "detokenize": False}

    async def of_row(row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output = await client.generate(uuid.uuid4().hex, prompt_ids=row.tolist(), sampling_params=asked)
        return torch.tensor(output.extra_fields["prompt_logprobs"]), torch.tensor(output.extra_fields["prompt_ids"])

    async def of_all() -> Scores:
        return await asyncio.gather(*map(of_row, rows))

    with teacher.lock:  # in a shared pool the servers sleep while others learn
        teacher.sync(0)
        scores = asyncio.run(of_all())
        teacher.sleep()
    return scores


def of_endpoint(name: str, endpoint: Endpoint, prompts: Sequence[str | list[int]], top: int) -> Scores:
    """By the completions of an endpoint with vLLM's `prompt_logprobs`, at each position but the first: token id -> its
    log-prob, of the prompt's own token, which comes first, and of the likeliest. MarlError without them."""
    import openai

    key = endpoint_key(name, endpoint)
    client = openai.OpenAI(base_url=endpoint.url, api_key=key, max_retries=RETRIES)

    def of_prompt(prompt: str | list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        asked: Any = {"model": endpoint.model, "prompt": prompt, "max_tokens": 1}
        completion = client.completions.create(**asked, extra_body={"prompt_logprobs": top})
        positions = getattr(completion.choices[0], "prompt_logprobs", None)
        if not positions:
            raise MarlError("it returns no prompt_logprobs, which a teacher needs: vLLM's /completions does")
        entries = [[(entry["logprob"], int(token)) for token, entry in at.items()] for at in positions[1:]]
        likeliest = [sorted(entry, reverse=True)[:top] or entry[:1] for entry in [*entries, entries[-1]]]
        log_probs, ids = torch.tensor(likeliest, dtype=torch.float64).unbind(-1)
        return log_probs.float(), ids.long()

    with reported(name, endpoint, key), client, ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(of_prompt, prompts))


def same_tokens(name: str, endpoint: Endpoint, tokenizer: Any) -> bool:
    """Whether an endpoint reads a text with words of the whole vocabulary as the same tokens as a tokenizer."""
    words = [*range(0, len(tokenizer), 1 + len(tokenizer) // PIECES)]
    text = tokenizer.decode(words, skip_special_tokens=True)
    ((_, ids),) = of_endpoint(name, endpoint, [text], 0)
    return bool(ids[:-1, 0].tolist() == tokenizer.encode(text)[1:])
