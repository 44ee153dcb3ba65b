"""A word-level tokenizer with a chat template: one token a word, so that a cell or a digit is one decision."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from marl_verl.errors import MarlError

PAD, UNKNOWN, START, END = "<|pad|>", "<|unk|>", "<|im_start|>", "<|im_end|>"
ROLES = ("system", "user", "assistant")

# ChatML. Its line ends are white space, which this tokenizer drops: a message costs its words and three tokens.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
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
    check_words(vocabulary)
    words = [PAD, UNKNOWN, START, END, *ROLES]
    words += [word for word in vocabulary if word not in ROLES]
    backend = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token=UNKNOWN))
    backend.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=END,
        additional_special_tokens=[START],
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def check_words(vocabulary: Sequence[str]) -> None:
    """Raise MarlError unless these are different words, without white space, and none looks like a special token."""
    seen: set[str] = set()
    for word in vocabulary:
        if not word or word.split() != [word] or word.startswith("<|"):
            raise MarlError(f"vocabulary: {word!r} is no plain word")
        if word in seen:
            raise MarlError(f"vocabulary: {word!r} is there twice")
        seen.add(word)
