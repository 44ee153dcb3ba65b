"""How a tiny model is made: its tokenizer, its network, and a short supervised warm-up.

The tokenizers differ in everything that a team must not rely on. With byte pairs (Llama) the same text has more and
other ids, spaces belong to the word behind them, a conversation begins with a token of its own, line breaks in the chat
template are tokens, and a text can be split in several ways: what was sampled is not always what encoding it gives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import ByteLevel, WhitespaceSplit
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from marl_verl.errors import MarlError
from marl_verl.models import Progress, Shape

PAD, UNKNOWN, START, END = "<|pad|>", "<|unk|>", "<|im_start|>", "<|im_end|>"
ROLES = ("system", "user", "assistant")
BPE_PAD, BPE_BEGIN, BPE_END = "<pad>", "<s>", "</s>"
BPE_ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
MERGES_A_WORD = 2  # so few that a frequent word is one piece and another one two or three

# ChatML. Its line ends are white space, which this tokenizer drops: a message costs its words and three tokens.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# A message costs its pieces and four tokens, a conversation one more, and the generation prompt two.
BPE_CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\\n' + message['content'] + eos_token + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)

# A Llama does not normalise queries and keys as a Qwen3 does: at transformers' 0.02 its attention begins so flat that
# the warm-up is over before it has learnt to look (loss 0.28 instead of 0.16 nats a token on inventory's asker).
LLAMA_INITIAL = 0.05

IGNORED = -100  # the label of a token that carries no loss
RISING = 20  # steps in which the learning rate rises
LAST = 0.1  # the learning rate at the end, as a share of the highest


def make_tokenizer(vocabulary: Sequence[str], context: int = 256) -> PreTrainedTokenizerFast:
    """One token a word: the given words, the chat roles and four special tokens; other words become `<|unk|>`.
    `decode(encode(text)) == text` for known words and single spaces. MarlError for words that cannot be tokens."""
    _check_words(vocabulary)
    words = [PAD, UNKNOWN, START, END, *ROLES, *(word for word in vocabulary if word not in ROLES)]
    backend = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token=UNKNOWN))
    backend.pre_tokenizer = WhitespaceSplit()
    special = {"pad_token": PAD, "unk_token": UNKNOWN, "eos_token": END, "additional_special_tokens": [START]}
    return _wrapped(backend, context, CHAT_TEMPLATE, special)


def make_bpe_tokenizer(vocabulary: Sequence[str], context: int = 256) -> PreTrainedTokenizerFast:
    """Byte-pair encoding (Sennrich et al. 2016, arXiv 1508.07909): all 256 bytes, merges learnt from the given words,
    and six special tokens. `decode(encode(text)) == text` for every text. MarlError for words that cannot be tokens."""
    _check_words(vocabulary, (BPE_PAD, BPE_BEGIN, BPE_END, *BPE_ROLES))
    backend = Tokenizer(BPE())
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(ByteLevel.alphabet())
    size = len(alphabet) + MERGES_A_WORD * len(vocabulary)
    trainer = BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([f" {word}" for word in vocabulary], trainer)
    special = {"pad_token": BPE_PAD, "bos_token": BPE_BEGIN, "eos_token": BPE_END}
    return _wrapped(backend, context, BPE_CHAT_TEMPLATE, {**special, "additional_special_tokens": list(BPE_ROLES)})


def _wrapped(backend: Tokenizer, context: int, template: str, special: dict[str, Any]) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, model_max_length=context, clean_up_tokenization_spaces=False, **special
    )
    tokenizer.chat_template = template
    return tokenizer


def _check_words(vocabulary: Sequence[str], special: Sequence[str] = ()) -> None:
    """Raise MarlError unless these are different words, without white space, and none is like a special token."""
    for number, word in enumerate(vocabulary):
        if not word or word.split() != [word] or word.startswith("<|"):
            raise MarlError(f"vocabulary: {word!r} is no plain word")
        if word in special:
            raise MarlError(f"vocabulary: {word!r} is a special token")
        if word in vocabulary[:number]:
            raise MarlError(f"vocabulary: {word!r} is there twice")


def make_model(shape: Shape, tokenizer: PreTrainedTokenizerFast, seed: int) -> PreTrainedModel:
    """A model with random weights in float32, the same for the same seed; torch's own random state is left alone."""
    ends = {name: getattr(tokenizer, name) for name in ("eos_token_id", "pad_token_id", "bos_token_id")}
    name = shape.family.capitalize()
    own: dict[str, Any] = {"initializer_range": LLAMA_INITIAL} if name == "Llama" else {"use_sliding_window": False}
    config = getattr(transformers, f"{name}Config")(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.mlp,
        max_position_embeddings=shape.context,
        tie_word_embeddings=True,
        dtype="float32",
        architectures=[f"{name}ForCausalLM"],
        **ends,
        **own,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, f"{name}ForCausalLM")(config).float()
    model.generation_config = transformers.GenerationConfig(**ends)
    return model


def warm_up(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    demonstrations: Sequence[tuple[str, str]],
    batch_size: int,
    learning_rate: float,
    progress: Progress | None = None,
) -> float:
    """Train on (observation, answer) pairs in their order, once, with the loss on the answer and its end token only.
    It teaches the format and a mixed crowd's habits, among which the updates later choose.

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
    answers = tokenizer([message for _, message in demonstrations], add_special_tokens=False)["input_ids"]
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
