"""The sampler of the local backend: equal to a forward of the whole sequence per token, whatever shares its batch."""

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import pytest
import torch
from marl_verl_local.server import PATIENCE, Completion, LocalServer
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from marl_verl.threads import call_in_thread, perform, result_in

WORDS = [f"w{n}" for n in range(40)]
SIZES = {
    **{"vocab_size": 48, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128},
}
"""Eight ids are beyond the tokenizer."""
LIMIT = 96
PARAMETERS = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": True}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    inner = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="w0"))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece(prefix="##")
    return PreTrainedTokenizerFast(tokenizer_object=inner)


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def model(request: pytest.FixtureRequest) -> torch.nn.Module:
    kind, config = {"qwen3": (Qwen3ForCausalLM, Qwen3Config), "llama": (LlamaForCausalLM, LlamaConfig)}[request.param]
    torch.manual_seed(1)
    return kind(config(**SIZES, attn_implementation="sdpa", initializer_range=0.4)).train()


def requests(count: int) -> list[tuple[list[int], dict[str, Any]]]:
    """Mixed requests, one in four with the prompt of another."""
    draw = torch.Generator().manual_seed(5)

    def number(below: int) -> int:
        return int(torch.randint(below, (1,), generator=draw))

    made: list[tuple[list[int], dict[str, Any]]] = []
    for n in range(count):
        prompt = [number(40) for _ in range(1 + number(30))] if n % 4 else (made[-1][0] if made else [3])
        parameters = {
            **PARAMETERS,
            **{"temperature": (1.0, 0.7, 1.3, 0.0)[number(4)], "top_p": (1.0, 0.8)[number(2)]},
            **{"top_k": (-1, 5, 1000)[number(3)], "min_p": (0.0, 0.05)[number(2)], "seed": number(1 << 30)},
            **{"max_tokens": 1 + number(12), "stop_token_ids": [number(40), number(40)]},
        }
        made.append((prompt, parameters))
    return made


def sample(server: LocalServer, wanted: Sequence[tuple[list[int], Mapping[str, Any]]]) -> list[Completion]:
    async def together() -> list[Completion]:
        calls = [server.generate(str(n), prompt_ids=ids, sampling_params=p) for n, (ids, p) in enumerate(wanted)]
        return await asyncio.wait_for(asyncio.gather(*calls), 60)

    return asyncio.run(together())


def reference(model: Any, prompt: list[int], p: Mapping[str, Any], stop: Any = None) -> tuple[list[int], list[float]]:
    """One request alone, the whole sequence for each token, filters as sets of tokens."""
    model.eval()
    generator = torch.Generator().manual_seed(p["seed"])
    ids, log_probs = list(prompt), []
    while True:
        logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1, :40].detach()
        if p["temperature"] == 0:
            token = int(logits.argmax())
        else:
            logits = logits / p["temperature"]
            chances = logits.softmax(-1)
            logits[chances < p.get("min_p", 0) * chances.max()] = -torch.inf
            if p["top_k"] > 0:
                logits[logits.argsort(descending=True)[p["top_k"] :]] = -torch.inf
            order, chances = logits.argsort(descending=True), logits.softmax(-1)
            kept = chances[order].cumsum(-1) - chances[order] < p["top_p"]
            logits[order[~kept]] = -torch.inf
            # the padded vocabulary has noise, too
            noise = torch.ones(SIZES["vocab_size"]).exponential_(generator=generator)[:40]
            token = int((logits.softmax(-1) / noise).argmax())
        ids.append(token)
        log_probs.append(float(logits.log_softmax(-1)[token]))
        sampled = ids[len(prompt) :]
        if token in p.get("stop_token_ids", ()) or len(sampled) == p["max_tokens"] or (stop and stop(sampled)):
            model.train()
            return sampled, log_probs


def close(completion: Completion, expected: tuple[list[int], list[float]]) -> bool:
    return completion.token_ids == expected[0] and completion.log_probs == pytest.approx(expected[1], abs=1e-4)


def test_equals_one_forward_per_token(model: Any, tokenizer: Any) -> None:
    wanted, server = requests(60), LocalServer(model, tokenizer, LIMIT)
    server.version = 3
    completions = sample(server, wanted)
    expected = [reference(model, *request) for request in wanted]
    assert [n for n, pair in enumerate(zip(completions, expected, strict=True)) if not close(*pair)] == []
    assert completions[0].extra_fields["global_steps"] == 3


def test_no_row_depends_on_its_batch(model: Any, tokenizer: Any) -> None:
    wanted = requests(40)
    together = sample(LocalServer(model, tokenizer, LIMIT), wanted)
    small = sample(LocalServer(model, tokenizer, LIMIT, max_requests=3), wanted[::-1])[::-1]
    bounded = sample(LocalServer(model, tokenizer, LIMIT, max_cache_bytes=60 * 256), wanted)
    for other in (small, bounded):
        assert [one.token_ids for one in other] == [one.token_ids for one in together]


def test_requests_join_rows_in_flight(model: Any, tokenizer: Any) -> None:
    wanted, server = requests(30), LocalServer(model, tokenizer, LIMIT)

    async def request(n: int) -> Completion:
        for _ in range(n % 7):  # waits for another request first
            await server.generate("", prompt_ids=[n], sampling_params={**PARAMETERS, "max_tokens": 2})
        return await server.generate("", prompt_ids=wanted[n][0], sampling_params=wanted[n][1])

    async def all_requests() -> list[Completion]:
        return await asyncio.gather(*(request(n) for n in range(len(wanted))))

    assert [one.token_ids for one in asyncio.run(all_requests())] == [one.token_ids for one in sample(server, wanted)]


def test_equal_prompts_are_computed_once_and_together(model: Any, tokenizer: Any) -> None:
    computed = []
    hook = model.model.register_forward_pre_hook(
        lambda _, __, inputs: computed.append(tuple(inputs["input_ids"].shape)), with_kwargs=True
    )
    try:
        sample(LocalServer(model, tokenizer, LIMIT), [(list(range(20)), {**PARAMETERS, "max_tokens": 3})] * 8)
    finally:
        hook.remove()
    assert computed == [(1, 19), (8, 1), (8, 1), (8, 1)]


def test_what_is_computed_together_does_not_depend_on_how_long_calls_take(model: Any, tokenizer: Any) -> None:
    """In two servers, whose requests follow calls of users' code, or come from calls, which wait for them."""
    wanted, computed, begun = requests(12), list[tuple[int, ...]](), time.monotonic()
    hook = model.model.register_forward_pre_hook(
        lambda _, __, inputs: computed.append(tuple(inputs["input_ids"].flatten())), with_kwargs=True
    )

    async def together(delays: Sequence[float]) -> list[Completion]:
        servers = [LocalServer(model, tokenizer, LIMIT) for _ in range(2)]

        async def episode(n: int) -> Completion:
            for server in (*servers, servers[1]):
                await perform(time.sleep, (delays[n],), 10)
                await asked(server, n)
            return await call_in_thread(framework, (servers[0], n))

        def asked(server: LocalServer, n: int) -> Coroutine[Any, Any, Completion]:
            return server.generate(str(n), prompt_ids=wanted[n][0], sampling_params=wanted[n][1])

        loop = asyncio.get_running_loop()

        def framework(server: LocalServer, n: int) -> Completion:
            for _ in range(2):
                time.sleep(delays[-n])
                completion = result_in(loop, asked(server, n))
            return completion

        return await asyncio.gather(*map(episode, range(len(delays))))

    try:
        runs = []
        for scale in (0.0, 0.02, -0.02):
            completions = asyncio.run(together([max(0.0, scale * (n - 6)) for n in range(12)]))
            runs.append(([completion.log_probs for completion in completions], [*computed]))
            computed.clear()
    finally:
        hook.remove()
    assert runs[0] == runs[1] == runs[2]
    assert time.monotonic() - begun < 3 * PATIENCE  # servers that wait for such calls take longer


def test_stop_strings_are_included_and_may_span_tokens(model: Any, tokenizer: Any) -> None:
    prompt, parameters = list(range(9)), {**PARAMETERS, "seed": 8, "max_tokens": 20, "logprobs": False}
    server = LocalServer(model, tokenizer, LIMIT)
    whole = sample(server, [(prompt, parameters)])[0]
    text = tokenizer.decode(whole.token_ids[4:6])
    stopped = sample(server, [(prompt, {**parameters, "stop": ["none", text[1:]]})])[0]
    assert 2 <= len(stopped.token_ids) <= 6
    assert stopped.token_ids == whole.token_ids[: len(stopped.token_ids)]
    assert tokenizer.decode(stopped.token_ids).endswith(text[1:])
    assert stopped.log_probs == []


def test_a_completion_ends_at_the_limit_of_the_model(model: Any, tokenizer: Any) -> None:
    completion = sample(LocalServer(model, tokenizer, 12), [([1] * 9, {**PARAMETERS, "max_tokens": 50})])[0]
    assert len(completion.token_ids) == 3


def test_the_model_is_as_before(model: Any, tokenizer: Any) -> None:
    model.model.layers[0].eval()
    state = torch.get_rng_state()
    attention = model.config._attn_implementation
    try:
        sample(LocalServer(model, tokenizer, LIMIT), requests(4))
        assert [module.training for module in (model, *model.model.layers)] == [True, False, True]
    finally:
        model.train()
    assert model.config._attn_implementation == attention
    assert torch.equal(torch.get_rng_state(), state)
    model(torch.tensor([[1, 2, 3]])).logits.sum().backward()
    model.zero_grad(set_to_none=True)


def test_a_cancelled_request_frees_its_row(model: Any, tokenizer: Any) -> None:
    server = LocalServer(model, tokenizer, LIMIT, max_requests=1)
    parameters = {**PARAMETERS, "seed": 1, "max_tokens": 5}

    async def run() -> list[int]:
        endless = server.generate("", prompt_ids=[1], sampling_params={**parameters, "max_tokens": 90})
        cancelled = asyncio.create_task(endless)
        kept = asyncio.create_task(server.generate("", prompt_ids=[2], sampling_params=parameters))
        await asyncio.sleep(0.02)
        cancelled.cancel()
        return (await asyncio.wait_for(kept, 10)).token_ids

    assert asyncio.run(run()) == reference(model, [2], parameters)[0]


def test_an_error_in_a_step_fails_all_requests_and_no_later_one(model: Any, tokenizer: Any) -> None:
    server = LocalServer(model, tokenizer, LIMIT, max_requests=2)
    parameters = {**PARAMETERS, "seed": 1, "max_tokens": 5}

    async def run() -> None:
        bad = [server.generate("", prompt_ids=[n, 999], sampling_params=parameters) for n in range(4)]
        errors = await asyncio.wait_for(asyncio.gather(*bad, return_exceptions=True), 10)
        assert [type(error) for error in errors] == [IndexError] * 4
        completion = await server.generate("", prompt_ids=[2], sampling_params=parameters)
        assert completion.token_ids == reference(model, [2], parameters)[0]

    asyncio.run(run())


def test_an_adapter(tokenizer: Any) -> None:
    torch.manual_seed(2)
    model = get_peft_model(
        Qwen3ForCausalLM(Qwen3Config(**SIZES, attn_implementation="sdpa", initializer_range=0.4)),
        LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False),
    )
    wanted = [(prompt, {**parameters, "temperature": 1.0}) for prompt, parameters in requests(6)]
    completions = sample(LocalServer(model, tokenizer, LIMIT), wanted)
    assert all(close(done, reference(model, *request)) for done, request in zip(completions, wanted, strict=True))
