"""A short supervised warm-up: the format and a mixed crowd's habits, among which the updates later choose."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from marl_verl.models import Progress

IGNORED = -100  # the label of a token that carries no loss
RISING = 20  # steps in which the learning rate rises
LAST = 0.1  # the learning rate at the end, as a share of the highest


def warm_up(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    demonstrations: Sequence[tuple[str, str]],
    batch_size: int,
    learning_rate: float,
    progress: Progress | None = None,
) -> float:
    """Train on (observation, answer) pairs in their order, once, with the loss on the answer and its end token only.

    loss = - mean over answer tokens of log p(token | chat prompt of the observation, answer so far)

    AdamW on one CPU thread: the same pairs and weights give the same weights. A part of a batch at the end is left out.
    Returns the loss in nats a token, mean of the last ten steps.
    """
    steps = len(demonstrations) // batch_size
    optimiser = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0, fused=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    losses: list[float] = []
    model.train()
    try:
        for step, (tokens, labels) in enumerate(batches(tokenizer, demonstrations, batch_size)):
            # a linear rise, then half a cosine down to `LAST`
            share = LAST + (1 - LAST) * 0.5 * (1 + math.cos(math.pi * step / max(1, steps)))
            optimiser.param_groups[0]["lr"] = learning_rate * (min(1.0, (step + 1) / RISING) * share)
            # Padding is on the right, where a causal model does not look: no attention mask is needed.
            logits = model(input_ids=tokens, use_cache=False).logits[:, :-1]
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED
            )
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            losses.append(loss.item())
            if progress is not None and (step % 10 == 9 or step == steps - 1):
                progress((step + 1) / steps)
    finally:
        torch.set_num_threads(threads)
        model.eval()
    return sum(losses[-10:]) / max(1, len(losses[-10:]))


def batches(
    tokenizer: PreTrainedTokenizerFast, demonstrations: Sequence[tuple[str, str]], batch_size: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(tokens, labels) of each full batch, both (batch_size, longest) int64, padded on the right."""
    # The template is rendered once around a marker, and not once a pair: that would take longer than the training.
    marker = "<marker>"
    chat = [{"role": "user", "content": marker}]
    before, after = str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)).split(marker)
    prompts = tokenizer([before + seen + after for seen, _ in demonstrations], add_special_tokens=False)["input_ids"]
    answers = tokenizer([said for _, said in demonstrations], add_special_tokens=False)["input_ids"]
    for first in range(0, len(demonstrations) - batch_size + 1, batch_size):
        chosen = range(first, first + batch_size)
        longest = max(len(prompts[row]) + len(answers[row]) + 1 for row in chosen)
        tokens = torch.full((batch_size, longest), tokenizer.pad_token_id, dtype=torch.int64)
        labels = torch.full((batch_size, longest), IGNORED, dtype=torch.int64)
        for number, row in enumerate(chosen):
            answer = [*answers[row], tokenizer.eos_token_id]
            start, end = len(prompts[row]), len(prompts[row]) + len(answer)
            tokens[number, :end] = torch.tensor([*prompts[row], *answer])
            labels[number, start:end] = torch.tensor(answer)
        yield tokens, labels
