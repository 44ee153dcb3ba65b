"""Creation of a tiny model: tokenizer, network, and a short supervised warm-up.

The two tokenizers differ on purpose, so that tests find code that relies on one of them. With byte-pair encoding
(Llama) the same text has more and other ids, a space belongs to the next word, a conversation begins with a special
token, line breaks in the chat template are tokens, and encoding a decoded text may give other ids than sampled.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import ByteLevel, WhitespaceSplit
from tokenizers.trainers import BpeTrainer
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast  # a model is imported where it is made: 3 seconds more

from marl_verl.errors import MarlError
from marl_verl_tiny.model import Progress, Shape

PAD, UNKNOWN, START, END = "<|pad|>", "<|unk|>", "<|im_start|>", "<|im_end|>"
ROLES = ("system", "user", "assistant")
BPE_PAD, BPE_BEGIN, BPE_END = "<pad>", "<s>", "</s>"
BPE_ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
MERGES_A_WORD = 2  # few, so that frequent words are one token and others two or three

# ChatML. This tokenizer drops line breaks as white space: a message has its words and three more tokens.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# A message has its tokens and four more, a conversation one more, and the generation prompt two.
BPE_CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\\n' + message['content'] + eos_token + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)

# Unlike Qwen3, Llama does not normalise queries and keys. With transformers' default 0.02 its initial attention is
# nearly uniform, and the warm-up is too short to learn (loss 0.28 instead of 0.16 nats per token on inventory's asker).
LLAMA_INITIAL = 0.05

IGNORED = -100  # the label of tokens without loss, torch's default
RISING = 20  # steps of linear learning-rate warm-up
LAST = 0.1  # final learning rate as a share of the maximum


def make_tokenizer(vocabulary: Sequence[str], context: int = 256) -> PreTrainedTokenizerFast:
    """A word-level tokenizer: the given words, chat roles and four special tokens; other words become `<|unk|>`.
    `decode(encode(text)) == text` for known words and single spaces. MarlError for words that cannot be tokens."""
    _check_words(vocabulary)
    words = [PAD, UNKNOWN, START, END, *ROLES, *(word for word in vocabulary if word not in ROLES)]
    backend = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token=UNKNOWN))
    backend.pre_tokenizer = WhitespaceSplit()
    special = {"pad_token": PAD, "unk_token": UNKNOWN, "eos_token": END, "additional_special_tokens": [START]}
    return _wrapped(backend, context, CHAT_TEMPLATE, special)


def make_bpe_tokenizer(vocabulary: Sequence[str], context: int = 256) -> PreTrainedTokenizerFast:
    """A byte-pair tokenizer (Sennrich et al. 2016, arXiv 1508.07909): 256 bytes, merges learnt from the given words,
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
    options = {"model_max_length": context, "clean_up_tokenization_spaces": False, "chat_template": template}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **options, **special)


def _check_words(vocabulary: Sequence[str], special: Sequence[str] = ()) -> None:
    """Raise MarlError unless the words are unique, without white space, and none looks like a special token."""
    for word, count in Counter(vocabulary).items():
        if word.split() != [word] or word.startswith("<|") or word in special or count > 1:
            raise MarlError(f"vocabulary: {word!r} is not a plain word, a special token, or a duplicate")


def make_model(shape: Shape, tokenizer: PreTrainedTokenizerFast, seed: int) -> "transformers.PreTrainedModel":
    """Create a model with random float32 weights from a seed, without changing torch's global random state."""
    ends = {name: getattr(tokenizer, name) for name in ("eos_token_id", "pad_token_id", "bos_token_id")}
    name = shape.family.capitalize()
    kind = f"{name}ForCausalLM"
    own: dict[str, Any] = {"initializer_range": LLAMA_INITIAL} if name == "Llama" else {"use_sliding_window": False}
    sizes = {**shape.config(), "vocab_size": len(tokenizer), "max_position_embeddings": shape.context}
    config = getattr(transformers, f"{name}Config")(**sizes, dtype="float32", architectures=[kind], **ends, **own)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, kind)(config).float()
    model.generation_config = transformers.GenerationConfig(**ends)
    return model


def warm_up(
    model: "transformers.PreTrainedModel",
    tokenizer: PreTrainedTokenizerFast,
    demonstrations: Sequence[tuple[str, str]],
    batch_size: int,
    learning_rate: float,
    progress: Progress = lambda fraction: None,
) -> float:
    """Train once on (observation, answer) pairs in order, with loss on the answer and its end token only.

    The model learns the format and a mixture of behaviours, which reinforcement learning later reweights.

    loss = - mean over answer tokens of log p(token | chat prompt of the observation, answer so far)

    AdamW on one CPU thread, so the result is deterministic. An incomplete last batch is dropped. Returns the mean loss
    of the last ten steps, in nats per token; 0 without a step.
    """
    steps = len(demonstrations) // batch_size
    if not steps:
        return 0.0
    optimiser = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0, fused=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    losses: list[float] = []
    model.train()
    try:
        for step, (tokens, labels) in enumerate(batches(tokenizer, demonstrations, batch_size)):
            # linear warm-up, then cosine decay to `LAST`
            share = LAST + (1 - LAST) * 0.5 * (1 + math.cos(math.pi * step / steps))
            optimiser.param_groups[0]["lr"] = learning_rate * (min(1.0, (step + 1) / RISING) * share)
            # Causal attention never reads right padding, so no attention mask is needed.
            logits = model(input_ids=tokens, use_cache=False).logits[:, :-1]
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            losses.append(loss.item())
            if step % 10 == 9 or step == steps - 1:
                progress((step + 1) / steps)
    finally:
        torch.set_num_threads(threads)
        model.eval()
    return sum(losses[-10:]) / len(losses[-10:])


def batches(
    tokenizer: PreTrainedTokenizerFast, demonstrations: Sequence[tuple[str, str]], batch_size: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(tokens, labels) of each full batch, both (batch_size, longest) int64, padded on the right."""
    # Render the template once, around a marker: rendering it for each pair would take longer than the training.
    marker = "<marker>"
    chat = [{"role": "user", "content": marker}]
    before, after = str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)).split(marker)
    encode = tokenizer.backend_tokenizer.encode_batch_fast
    prompts = encode([before + seen + after for seen, _ in demonstrations], add_special_tokens=False)
    answers = encode([message for _, message in demonstrations], add_special_tokens=False)
    end = tokenizer.eos_token_id
    rows = [(prompt.ids, [*answer.ids, end]) for prompt, answer in zip(prompts, answers, strict=True)]
    for first in range(0, len(rows) - batch_size + 1, batch_size):
        batch = rows[first : first + batch_size]
        tokens = [torch.tensor(prompt + answer) for prompt, answer in batch]
        labels = [torch.tensor([IGNORED] * len(prompt) + answer) for prompt, answer in batch]
        yield pad_sequence(tokens, True, tokenizer.pad_token_id), pad_sequence(labels, True, IGNORED)
