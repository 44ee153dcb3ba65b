"""A byte-level tokenizer with merges learnt on the spot, for the tiny models of the Llama family.

In everything that a team must not rely on it differs from the word-level one: other ids for the same text and another
number of them, spaces that belong to the word behind them, a token at the beginning of a conversation, line breaks in
the chat template that are tokens. And a text can be made of its pieces in several ways: what was sampled is not always
what encoding its text gives.

Source: byte-pair encoding, Sennrich et al. 2016 (arXiv 1508.07909), on bytes; `tokenizers` does it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from marl_verl.errors import MarlError
from marl_verl.models.tokenizer import check_words

PAD, BEGIN, END = "<pad>", "<s>", "</s>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
MERGES_A_WORD = 2  # so few that a frequent word is one piece and another one two or three

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\\n' + message['content'] + eos_token + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)


def make_bpe_tokenizer(vocabulary: Sequence[str], context: int = 256) -> PreTrainedTokenizerFast:
    """A tokenizer of all 256 bytes, of merges learnt from the given words, and of six special tokens.

    Decoding gives every text back as it was, `decode(encode(text)) == text`. A message costs its pieces and four
    tokens, a conversation one more, and the generation prompt two.

    Args:
        vocabulary: the words; no white space inside, no repeats.
        context: longest text in tokens.

    Raises:
        MarlError: a word is empty, holds white space, is repeated or is a special token.
    """
    check_words(vocabulary)
    special = [PAD, BEGIN, END, *ROLES]
    for word in vocabulary:
        if word in special:
            raise MarlError(f"vocabulary: {word!r} is a special token")
    backend = Tokenizer(BPE())
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(ByteLevel.alphabet())
    size = len(alphabet) + MERGES_A_WORD * len(vocabulary)
    trainer = BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([f" {word}" for word in vocabulary], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        bos_token=BEGIN,
        eos_token=END,
        additional_special_tokens=list(ROLES),
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
