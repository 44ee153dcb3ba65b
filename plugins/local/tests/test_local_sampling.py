"""Tokens and ends of the local backend's completions are those of the installed vLLM, on the same logits and ids."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from marl_verl_local.sampling import Row, sample
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from marl_verl.backend.verl.platforms.vllm_plugin import keep_seeds

pytestmark = pytest.mark.slow
ROWS, WORDS, STEPS = 40, 60, 12


@pytest.fixture(scope="module", autouse=True)
def vllm() -> None:
    pytest.importorskip("vllm")


def parameters(row: int) -> dict[str, Any]:
    return {
        "temperature": (1.0, 0.6, 1.4, 0.001)[row % 4],
        "top_k": (-1, 4, 1, 1000)[row // 2 % 4],
        "top_p": (1.0, 0.9, 0.3)[row % 3],
        "min_p": (0.0, 0.1)[row // 3 % 2],
        "seed": row,
    }


@pytest.mark.parametrize("greedy", ["none", "some", "all"])
@pytest.mark.parametrize("filters", [("top_k", "top_p", "min_p"), ("top_k",), ("top_p",), ()])
def test_tokens_and_log_probs_are_vllms(filters: tuple[str, ...], greedy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm import SamplingParams
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.logits_processor.builtin import MinPLogitsProcessor
    from vllm.v1.sample.metadata import SamplingMetadata
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler
    from vllm.v1.sample.sampler import Sampler

    monkeypatch.setattr(TopKTopPSampler, "forward_cpu", TopKTopPSampler.forward_cpu)  # puts back what is replaced
    keep_seeds()
    every = {"none": ROWS + 1, "some": 3, "all": 1}[greedy]
    rows = [{**parameters(row), **({} if (row + 1) % every else {"temperature": 0.0})} for row in range(ROWS)]
    for name in {"top_k", "top_p", "min_p"} - set(filters):
        for row in rows:
            del row[name]
    theirs = [SamplingParams(**row) for row in rows]
    config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=ROWS))
    min_p = MinPLogitsProcessor(config, torch.device("cpu"), False)
    min_p.min_p, min_p.min_p_count = torch.tensor([[row.min_p] for row in theirs]), ROWS
    metadata = SamplingMetadata(
        temperature=torch.tensor([row.temperature for row in theirs]),
        all_greedy=greedy == "all",
        all_random=greedy == "none",
        top_p=torch.tensor([row.top_p for row in theirs]) if "top_p" in filters else None,
        top_k=torch.tensor([row.top_k if 0 < row.top_k < WORDS else WORDS for row in theirs], dtype=torch.int32)
        if "top_k" in filters
        else None,
        generators={n: torch.Generator().manual_seed(n) for n, row in enumerate(rows) if row["temperature"]},
        max_num_logprobs=0,
        no_penalties=True,
        prompt_token_ids=None,
        **dict.fromkeys(("frequency_penalties", "presence_penalties", "repetition_penalties"), torch.zeros(ROWS)),
        output_token_ids=[[] for _ in rows],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors([min_p] if "min_p" in filters else []),
    )
    sampler = Sampler(logprobs_mode="processed_logprobs")
    draws = [Row([0], row, STEPS, None, torch.device("cpu")) for row in rows]
    torch.manual_seed(3)
    for _ in range(STEPS):
        logits = 3 * torch.randn(ROWS, WORDS)
        logits[:, 5] = logits[:, 9]  # a tie
        metadata.top_k = None if metadata.top_k is None else metadata.top_k.clone()  # which it changes
        expected = sampler(logits.clone(), metadata)
        tokens, log_probs = sample(logits, draws)
        assert tokens.tolist() == expected.sampled_token_ids[:, 0].tolist()
        torch.testing.assert_close(log_probs, expected.logprobs_tensors.logprobs[:, 0], atol=1e-6, rtol=1e-6)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Bytes and their pairs: ids need not be text."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    text = ["the cat sat on the mat", "größer als über", "日本語 のテキスト", "stop. </answer>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=["<|end|>"], initial_alphabet=alphabet)
    inner.train_from_iterator(text * 4, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner)


def test_stop_strings_end_completions_as_in_vllm(tokenizer: PreTrainedTokenizerFast) -> None:
    from vllm import SamplingParams
    from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer

    draw, ends = torch.Generator().manual_seed(4), set()
    text = tokenizer("größer als über 日本語 the cat sat. </answer> on the mat")["input_ids"]
    for n in range(300):
        noise = torch.randint(len(tokenizer), (40,), generator=draw).tolist()
        ids = [token if other % 3 else other for token, other in zip(text * 3, noise, strict=False)] if n % 2 else noise
        prompt, ids = ids[: n % 9 + 1], ids[n % 9 + 1 :]
        strings = [("er", "語", "</answer>", " the", "t s")[n % 5], ("�", "x.", "ü")[n % 3]]
        stop = SamplingParams(stop=strings)
        request = SimpleNamespace(request_id=str(n), prompt_token_ids=prompt, sampling_params=stop)
        theirs = FastIncrementalDetokenizer(tokenizer, request)
        ours = Row(prompt, {"stop": strings}, 999, tokenizer, torch.device("cpu"))
        expected = next((at for at, token in enumerate(ids) if theirs.update([token], False)), None)
        assert next((at for at, token in enumerate(ids) if ours.add(token, 0.0)), None) == expected
        ends.add(expected)
    assert len(ends) > 10
