"""The tokenizers of tiny models: one token a word (Qwen3 family), or byte-pair encoding (Llama family).

The two differ in everything that a team must not rely on. With byte pairs the same text has other and more ids, spaces
belong to the word behind them, a conversation begins with a token of its own, and line breaks in the chat template are
tokens. A text can also be split in several ways: what was sampled is not always what encoding its text gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import ByteLevel, WhitespaceSplit
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from marl_verl.errors import MarlError

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
BPE_CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\\n' + message['content'] + eos_token + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)


def make_tokenizer(vocabulary: Sequence[str], context: int = 256) -> PreTrainedTokenizerFast:
    """A tokenizer of the given words, the chat roles and four special tokens; other words become `<|unk|>`.

    Decoding gives the words separated by single spaces, so `decode(encode(text)) == text` for such texts.

    Args:
        vocabulary: the words; no white space inside, no repeats.
        context: longest text in tokens.

    Raises:
        MarlError: a word is empty, holds white space, is repeated or looks like a special token.
    """
    _check_words(vocabulary)
    words = [PAD, UNKNOWN, START, END, *ROLES]
    words += [word for word in vocabulary if word not in ROLES]
    backend = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token=UNKNOWN))
    backend.pre_tokenizer = WhitespaceSplit()
    special = {"pad_token": PAD, "unk_token": UNKNOWN, "eos_token": END, "additional_special_tokens": [START]}
    return _wrapped(backend, context, CHAT_TEMPLATE, special)


def make_bpe_tokenizer(vocabulary: Sequence[str], context: int = 256) -> PreTrainedTokenizerFast:
    """A tokenizer of all 256 bytes, of merges learnt from the given words, and of six special tokens.

    Decoding gives every text back as it was, `decode(encode(text)) == text`. A message costs its pieces and four
    tokens, a conversation one more, and the generation prompt two.

    Source: byte-pair encoding, Sennrich et al. 2016 (arXiv 1508.07909), on bytes, as `tokenizers` does it.

    Args:
        vocabulary: the words; no white space inside, no repeats.
        context: longest text in tokens.

    Raises:
        MarlError: a word is empty, holds white space, is repeated or is a special token.
    """
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
    seen: set[str] = set()
    for word in vocabulary:
        if not word or word.split() != [word] or word.startswith("<|"):
            raise MarlError(f"vocabulary: {word!r} is no plain word")
        if word in special:
            raise MarlError(f"vocabulary: {word!r} is a special token")
        if word in seen:
            raise MarlError(f"vocabulary: {word!r} is there twice")
        seen.add(word)
