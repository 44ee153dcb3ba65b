"""Tokens and ends of the local backend's completions are those of the installed vLLM, on the same logits and ids."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from marl_verl.backend.local.sampling import Row, sample
from marl_verl.backend.local.server import LocalServer
from marl_verl.backend.verl.platforms.vllm_plugin import keep_seeds
from marl_verl.models.parsers import structured_outputs

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
def test_tokens_and_log_probs_are_those_of_vllm(
    filters: tuple[str, ...], greedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    special = ["<|end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
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
        request = SimpleNamespace(
            request_id=str(n), prompt_token_ids=prompt, sampling_params=SamplingParams(stop=strings)
        )
        theirs = FastIncrementalDetokenizer(tokenizer, request)
        ours = Row(prompt, {"stop": strings}, 999, tokenizer, torch.device("cpu"))
        expected = next((at for at, token in enumerate(ids) if theirs.update([token], False)), None)
        assert next((at for at, token in enumerate(ids) if ours.add(token, 0.0)), None) == expected
        ends.add(expected)
    assert len(ends) > 10


SCHEMA = {
    "type": "object",
    "properties": {"word": {"enum": ["cat", "mat"]}, "count": {"type": "integer"}, "tags": {"type": "array"}},
    "required": ["word", "count"],
    "additionalProperties": False,
}
FORMAT = {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}}


def test_a_completion_has_its_response_format(tokenizer: PreTrainedTokenizerFast) -> None:
    """Its tokens are those of the mask of vLLM; rows beside it are as without it."""
    from vllm.v1.structured_output.backend_types import StructuredOutputOptions
    from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend
    from xgrammar import apply_token_bitmask_inplace

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": len(tokenizer) + 13}
    model = Qwen3ForCausalLM(Qwen3Config(**sizes, attn_implementation="sdpa"))
    end, restriction = tokenizer.convert_tokens_to_ids("<|end|>"), structured_outputs(FORMAT)
    free = [{"seed": n, "max_tokens": 9, "stop_token_ids": [end]} for n in range(4)]
    formed = [{"seed": n, "stop_token_ids": [end], "structured_outputs": restriction} for n in range(4)]

    def sampled(parameters: list[dict[str, Any]]) -> list[list[int]]:
        server = LocalServer(model, tokenizer, 300)

        async def together() -> list[list[int]]:
            calls = [server.generate("", prompt_ids=[3], sampling_params=values) for values in parameters]
            return [completion.token_ids for completion in await asyncio.gather(*calls)]

        return asyncio.run(together())

    both = sampled([*free, *formed])
    assert both[:4] == sampled(free)
    assert any(ids[-1] == end for ids in both[4:])
    none = SimpleNamespace(disable_any_whitespace=False)
    config = SimpleNamespace(structured_outputs_config=none, speculative_config=None)
    theirs = XgrammarBackend(config, tokenizer, sizes["vocab_size"])
    for seed, ids in enumerate(both[4:]):
        if ids[-1] == end:
            assert json.loads(tokenizer.decode(ids[:-1])).keys() - {"tags"} == {"word", "count"}
        mask, draw = theirs.allocate_token_bitmask(1), Row([3], {"seed": seed}, 300, None, torch.device("cpu"))
        grammar = theirs.compile_grammar(StructuredOutputOptions.GRAMMAR, restriction.grammar, {end})
        for at, token in enumerate(ids):
            with torch.no_grad():
                logits = model(torch.tensor([[3, *ids[:at]]])).logits[:, -1]
            logits[:, len(tokenizer) :] = -torch.inf
            grammar.fill_bitmask(mask, 0)
            apply_token_bitmask_inplace(logits, mask)
            assert int(sample(logits, [draw])[0]) == token
            assert grammar.accept_tokens("", [token])
        assert grammar.is_terminated() == (ids[-1] == end)
