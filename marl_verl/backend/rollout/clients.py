"""The clients of policies: of the run's own servers, in token ids; of an external endpoint, in texts; and scripts.

An external endpoint is a server outside the run with OpenAI's chat completions API:

    POST url/chat/completions   {model, messages, temperature, top_p, max_tokens, seed}; top_k, min_p, stop where set
    GET  url/models             once, before a run starts

Its texts are not tokenized, because such a policy never learns; lengths are those of the server's `usage`. The `openai`
package retries with exponential backoff after rate limits, server errors and lost connections.
"""

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from omegaconf import DictConfig

from marl_verl.config.policy_models import check_unrestricted, endpoint_key
from marl_verl.episode import Act, Action
from marl_verl.episode.messages import Message, as_tool_calls
from marl_verl.errors import MarlError, format_error, nearest, user_error
from marl_verl.models.chat import Chat, before_stop, first_stop
from marl_verl.models.parsers import CUT, Parsers, structured_outputs, wrong_call
from marl_verl.team import Endpoint
from marl_verl.threads import perform

RETRIES = 5
"""About 15 s in total with the package's backoff (0.5 s, doubled each time, unless the server specifies it)."""
REACH_SECONDS = 10.0
PASSED = ("tools", "tool_choice", "parallel_tool_calls", "response_format")


class ObservationTooLong(MarlError):
    """An observation exceeds the policy's prompt limit. The episode fails; observations are never truncated."""


class Client(Protocol):
    """The client of one policy."""

    sampling: Mapping[str, Any]
    """Default sampling parameters: `temperature`, `top_p`, `top_k`, and others that its servers accept."""
    alone: bool = False  # whether it acts in one episode at a time

    def too_long(self, messages: Sequence[Message], tools: Sequence[Any] | None) -> str | None:
        """Why a conversation exceeds the policy's limit; None if it does not, or only its server knows."""
        return None

    async def answer(self, messages: list[Message], sampling: Mapping[str, Any], request_id: str, act: Act) -> Action:
        """Sample one action. ObservationTooLong if the prompt exceeds the policy's limit, MarlError without an action.

        Args:
            messages: the whole conversation, instructions first.
            sampling: `temperature`, `top_p`, `top_k` (-1: all tokens), `max_tokens` (None: the policy's own limit),
                `stop` (None: the policy's own), `seed` unless `marl.run.repeatable` is off; other keys are passed
                to the run's own servers.
            request_id: equal for all requests of an episode.
            act: what is asked for, of which a client reads the `parameters` (`tools`, `tool_choice`, `response_format`)
                and the `former` action, whose token ids the prompt begins with if the conversation continues it.
        """


def default_sampling(rollout: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling parameters that every client has by default, of verl's `rollout`."""
    return {name: rollout[name] for name in ("temperature", "top_p", "top_k")}


class PolicyClient(Client):
    """A `Client` of a policy of this run, from its `actor_rollout_ref` and its server.

    `client`: verl's client of its servers, or the sampler in this process; responses of `generate` have `token_ids`,
    `log_probs` and `extra_fields` ("global_steps": version of the weights). `template` are the variables of its chat
    template, `stop` the stop strings of agents that have none of their own, `parsers` the names of vLLM's parsers of
    tool calls and reasoning. `adapter` is the number of its adapter on servers that it shares.
    """

    def __init__(
        self,
        name: str,
        config: DictConfig,
        client: Any,
        template: Mapping[str, Any],
        stop: Sequence[str] | None = None,
        parsers: tuple[str | None, str | None] = (None, None),
        adapter: int | None = None,
    ) -> None:
        self.name, self.client, self.stop = name, client, stop or ()
        self._server_options = {} if adapter is None else {"adapter": adapter}
        self.prompt_length = int(config.rollout.prompt_length)
        self.response_length = int(config.rollout.response_length)
        self.sampling = default_sampling(config.rollout) | {"logprobs": bool(config.rollout.calculate_log_probs)}
        self.chat = Chat.load(config.model, template, f"policy '{name}'")
        self.parsers = Parsers(self.chat.tokenizer, *parsers, self.chat.whose, template)
        self.ends = frozenset() if config.rollout.get("ignore_eos") else self._ends(config.model)

    def _ends(self, model: DictConfig) -> frozenset[int]:
        """Ids of all tokens that end an action. vLLM has them too, but verl's servers do not say why they stopped."""
        from verl.utils.model import get_generation_config

        config = get_generation_config(model.path, trust_remote_code=model.trust_remote_code)
        ends = getattr(config, "eos_token_id", None)
        ids = {self.chat.tokenizer.eos_token_id, *(ends if isinstance(ends, list | tuple) else [ends])}
        return frozenset(ids - {None})

    def encode(
        self, messages: Sequence[Message], tools: Sequence[Any] | None = None, former: Action | None = None
    ) -> list[int]:
        """Token ids of a conversation with the generation prompt. ObservationTooLong above `rollout.prompt_length`."""
        begun, reply = list[int](), 0
        if former is not None and former.response_ids:
            begun = [*former.prompt_ids, *former.response_ids]
            reply = len(former.response_ids) if former.message in messages else 0
        ids = self.chat.encode(messages, tools, begun, reply)
        if len(ids) > self.prompt_length:
            raise ObservationTooLong(
                f"an observation of {len(ids)} tokens exceeds the limit of policy '{self.name}', {self.prompt_length} "
                f"(data.max_prompt_length, or marl.policies.{self.name}.rollout.prompt_length for this policy; "
                "data.filter_overlong_prompts=true drops tasks that are too long by themselves)"
            )
        return list(ids)

    def too_long(self, messages: Sequence[Message], tools: Sequence[Any] | None) -> str | None:
        """See `Client`. The chat keeps the token ids for the request that follows."""
        try:
            self.encode(messages, tools)
        except ObservationTooLong as error:
            return str(error)
        return None

    async def answer(self, messages: list[Message], sampling: Mapping[str, Any], request_id: str, act: Act) -> Action:
        """See `Client`. `sampling` is passed to vLLM unchanged except for `max_tokens` and `stop`.

        The token ids of an action include what ended it: a stop token, or the tokens of a stop string. Its text is
        without both, as in OpenAI's API.
        """
        begun, asked = time.monotonic(), act.parameters or {}
        if not getattr(self.client, "grammars", True):
            check_unrestricted(self.name, [act])
        prompt_ids = self.encode(messages, asked.get("tools"), act.former)
        limit = min(sampling.get("max_tokens") or self.response_length, self.response_length)
        stop, tokens = self.chat.stops(self.stop if sampling.get("stop") is None else sampling["stop"])
        ends = self.ends.union(tokens)
        params = {**sampling, "max_tokens": limit, "stop": stop, "stop_token_ids": sorted(ends)}
        if (restricted := structured_outputs(asked)) is not None:
            params["structured_outputs"] = restricted
        sent: dict[str, Any] = {"prompt_ids": prompt_ids, "sampling_params": params, **self._server_options}
        output = await self.client.generate(request_id, **sent)
        ids = [int(token) for token in output.token_ids]
        if not ids:
            raise MarlError(f"the server of policy '{self.name}' returned an empty completion")
        # spaces as sampled: vLLM compares stop strings with this text
        decode = partial(self.chat.tokenizer.decode, clean_up_tokenization_spaces=False)
        ended = ids[-1] in ends
        said = ids[:-1] if ended else ids
        text, raw = decode(said, skip_special_tokens=True), decode(said)
        stopped_by, before = first_stop(text, stop), before_stop(text, stop)
        if before is not None:
            text, raw = before, before_stop(raw, stop) or before
        cut = not ended and before is None
        opening = ""
        if self.parsers.reasoning:  # the text after the last message, where a template may have closed the reasoning
            prompt, content = decode(prompt_ids), messages[-1]["content"].strip()
            opening = prompt.rpartition(content)[2] if content else prompt
        parsed = self.parsers.parse(text, raw, asked, opening, cut)
        return Action(
            text=parsed.text,
            prompt_ids=prompt_ids,
            response_ids=ids,
            log_probs=list(output.log_probs or []),
            stop_reason="length" if cut else "stop",
            version=output.extra_fields.get("global_steps"),
            seconds=time.monotonic() - begun,
            tool_calls=as_tool_calls(parsed.calls),
            reasoning=parsed.reasoning,
            malformed=parsed.malformed,
            stop=stopped_by or (decode(ids[-1:]) if ids[-1] in tokens else None),
        )


class EndpointClient(Client):
    """A `Client` of an endpoint with its key; `max_tokens`: the policy's limit. `marl.rollout.act_seconds` limits all
    tries together."""

    def __init__(
        self,
        name: str,
        endpoint: Endpoint,
        key: str,
        sampling: Mapping[str, Any],
        max_tokens: int,
        stop: Sequence[str] | None = None,
        retries: int = RETRIES,
    ) -> None:
        from openai import AsyncOpenAI

        self.name, self.endpoint, self.max_tokens, self.stop = name, endpoint, max_tokens, stop or []
        self.sampling, self._key = default_sampling(sampling), key
        self._client = AsyncOpenAI(base_url=endpoint.url, api_key=key, max_retries=retries)

    async def answer(self, messages: list[Message], sampling: Mapping[str, Any], request_id: str, act: Act) -> Action:
        """See `Client`: text and number of tokens, no ids, no log-probabilities. An empty text is a valid action."""
        from openai import omit

        begun, asked = time.monotonic(), act.parameters or {}
        limit = min(sampling.get("max_tokens") or self.max_tokens, self.max_tokens)
        beyond = {name: value for name in ("top_k", "min_p") if (value := sampling.get(name) or 0) > 0}
        stop = self.stop if sampling.get("stop") is None else sampling["stop"]
        with _reported(self.name, self.endpoint, self._key):
            completion: Any = await self._client.chat.completions.create(
                model=self.endpoint.model,
                messages=list(messages),  # type: ignore[arg-type]  # typed as one class per role
                temperature=sampling["temperature"],
                top_p=sampling["top_p"],
                max_tokens=limit,
                seed=sampling.get("seed", omit),
                stop=list(stop) or omit,
                extra_body=beyond or None,  # OpenAI rejects these fields; vLLM and others accept them
                **{name: asked.get(name, omit) for name in PASSED},
            )
            action = _action(completion, asked, limit)
        stopped_by = action.stop if action.stop in stop else None
        return replace(action, seconds=time.monotonic() - begun, stop=stopped_by)


def _action(completion: Any, asked: Mapping[str, Any], limit: int) -> Action:
    """The action of a chat completion, whose schema the package does not check; `stop` is vLLM's stop text. Calls of a
    completion that reached the token limit are malformed: a server may have parsed a call that was cut off, and say
    that it stopped for it."""
    choice = completion.choices[0]
    message = choice.message
    functions = [call.function for call in message.tool_calls or () if getattr(call, "function", None)]
    calls = [{"name": function.name, "arguments": function.arguments or "{}"} for function in functions]
    tokens = getattr(getattr(completion, "usage", None), "completion_tokens", None)
    tokens = tokens if isinstance(tokens, int) else None
    reason = "length" if calls and tokens is not None and tokens >= limit else choice.finish_reason
    malformed = CUT if calls and reason == "length" else wrong_call(calls, asked)
    return Action(
        # none: a refusal, a tool call, or reasoning up to the token limit
        text=message.content if isinstance(message.content, str) else "",
        stop_reason=reason,
        tokens=tokens,
        tool_calls=[] if malformed else as_tool_calls(calls),
        malformed=malformed,
        # vLLM has called it both names
        reasoning=getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None),
        stop=getattr(choice, "stop_reason", None),
    )


def reach(name: str, endpoint: Endpoint) -> None:
    """Raise MarlError unless a policy's endpoint is reachable, accepts the key, and has the model."""
    import openai

    key = endpoint_key(name, endpoint)
    client = openai.OpenAI(base_url=endpoint.url, api_key=key, max_retries=1, timeout=REACH_SECONDS)
    with client, _reported(name, endpoint, key):
        # the raw body: the package fails on a response that is not a list
        listed = json.loads(client.models.with_raw_response.list().http_response.text)
        models = listed.get("data") if isinstance(listed, dict) else None
        names = [str(model["id"]) for model in models or ()]
        if endpoint.model not in names:
            hint = nearest(endpoint.model, names) if names else "/models lists none. Check that the url ends in /v1"
            raise MarlError(f"no model '{endpoint.model}': {hint}")


@contextmanager
def _reported(name: str, endpoint: Endpoint, key: str) -> Iterator[None]:
    """Convert errors to MarlError, with policy and endpoint in the message and without the key and the causes, in which
    a server may repeat it."""
    import openai

    kind: type[MarlError] = MarlError
    try:
        yield
    except (AttributeError, IndexError, TypeError) as error:
        text = f"not a chat completion ({error}). Check that the url ends in /v1"
    except openai.APIStatusError as error:
        body = error.body.get("message") if isinstance(error.body, Mapping) else error.body
        text = f"HTTP {error.status_code}: {body or error.message}"
        kind = ObservationTooLong if error.status_code in (400, 413) and _too_long(error.code, text.lower()) else kind
    except (MarlError, openai.OpenAIError, ValueError) as error:  # ValueError: a body that is not JSON
        text = f"{format_error(error)} ({error.__cause__})" if error.__cause__ is not None else format_error(error)
    else:
        return
    if endpoint.key_variable is not None:
        text = text.replace(key, f"[{endpoint.key_variable}]")
    raise kind(f"policy '{name}' at {endpoint.url}: {' '.join(text.split())[:400]}") from None


def _too_long(code: object, reply: str) -> bool:
    """Whether an HTTP 400 is about the context length: OpenAI sends a code, vLLM, SGLang and llama.cpp only text."""
    text = "context" in reply and any(word in reply for word in ("length", "size", "window"))
    return code == "context_length_exceeded" or text


class ScriptClient(Client):
    """A `Client` of `act(messages, random) -> text`, which may be async and `alone`, registered as `script`."""

    def __init__(self, policy: str, script: str, act: Callable[..., Any], sampling: Mapping[str, Any]) -> None:
        self.whose, self.act = f"script '{script}' of policy '{policy}'", act
        self.sampling, self.alone = default_sampling(sampling), bool(getattr(act, "alone", False))

    async def answer(self, messages: list[Message], sampling: Mapping[str, Any], request_id: str, act: Act) -> Action:
        """See `Client`: a text only. MarlError where the function fails or returns no text."""
        begun, drawn = time.monotonic(), random.Random(sampling.get("seed"))
        with user_error(self.whose, Exception):
            text = await perform(self.act, (list(messages), drawn))
        if not isinstance(text, str):
            raise MarlError(f"{self.whose} must return a text, got {text!r:.80}")
        return Action(text=text, seconds=time.monotonic() - begun)
