"""External endpoints: policies served outside the run by a server with OpenAI's chat completions API.

    POST url/chat/completions   {model, messages, temperature, top_p, max_tokens, seed}; top_k, min_p, stop where set
    GET  url/models             once, before a run starts

A request contains messages, a response contains text. The text is not tokenized, because such a policy never learns;
the length of a response is taken from the server's `usage`. The `openai` package retries with exponential backoff
after rate limits, server errors and lost connections.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from marl_verl.backend.verl.rollout.context import ObservationTooLong, default_sampling
from marl_verl.config.policy_models import endpoint_key
from marl_verl.episode import Action, Message
from marl_verl.episode.messages import as_tool_calls
from marl_verl.errors import MarlError, nearest
from marl_verl.models.parsers import CUT, wrong_call
from marl_verl.team import Endpoint

RETRIES = 5
"""About 15 s in total with the package's backoff (0.5 s, doubled each time, unless the server specifies it)."""
REACH_SECONDS = 10.0
PASSED = ("tools", "tool_choice", "parallel_tool_calls", "response_format")
LISTED = 10
"""Maximum number of model names in an error message."""


@dataclass(frozen=True)
class KeyedEndpoint:
    """An endpoint with its key, as rollout workers get it: Ray shows the variables of its runtime environment."""

    endpoint: Endpoint
    key: str = field(repr=False)


class EndpointClient:
    """A `Client` of an endpoint. MarlError if the environment variable with its key is not set and no `key` is given.

    `max_tokens` is the policy's limit. `request_seconds` limits one try, `marl.rollout.act_seconds` all tries together.
    """

    def __init__(
        self,
        name: str,
        endpoint: Endpoint,
        sampling: Mapping[str, Any],
        max_tokens: int,
        stop: Sequence[str] | None = None,
        retries: int = RETRIES,
        request_seconds: float = 600.0,
        key: str | None = None,
    ) -> None:
        from openai import AsyncOpenAI

        self.name, self.endpoint, self.max_tokens, self.stop = name, endpoint, max_tokens, stop or []
        self.sampling = default_sampling(sampling)
        self._key = endpoint_key(name, endpoint) if key is None else key
        self._client = AsyncOpenAI(
            base_url=endpoint.url, api_key=self._key, max_retries=retries, timeout=request_seconds
        )

    def too_long(self, messages: Sequence[Message], tools: Sequence[Any] | None) -> str | None:
        """None: only the server knows its limit."""
        return None

    async def answer(
        self,
        messages: Sequence[Message],
        sampling: Mapping[str, Any],
        request_id: str,
        parameters: Mapping[str, Any] | None = None,
        former: Action | None = None,
    ) -> Action:
        """See `Client`: text and number of tokens, no ids, no log-probabilities. An empty text is a valid action.

        The calls of a completion that reached the token limit are malformed: a server may have parsed a call that was
        cut off, and say that it stopped for it.
        """
        from openai import omit

        begun = time.monotonic()
        limit = min(sampling.get("max_tokens") or self.max_tokens, self.max_tokens)
        beyond = {name: value for name in ("top_k", "min_p") if (value := sampling.get(name) or 0) > 0}
        stop = self.stop if sampling.get("stop") is None else sampling["stop"]
        with _without_key(self.endpoint, self._key), _converted_errors(self.name, self.endpoint):
            completion: Any = await self._client.chat.completions.create(
                model=self.endpoint.model,
                messages=list(messages),  # type: ignore[arg-type]  # typed as one class per role
                temperature=sampling["temperature"],
                top_p=sampling["top_p"],
                max_tokens=limit,
                seed=sampling.get("seed", omit),
                stop=list(stop) or omit,
                extra_body=beyond or None,  # OpenAI rejects these fields; vLLM and others accept them
                **{name: (parameters or {}).get(name, omit) for name in PASSED},
            )
            text, stop_reason, calls, reasoning = _reply(completion)
            ended = getattr(completion.choices[0], "stop_reason", None)  # of vLLM: the stop text
        taken, tokens = time.monotonic() - begun, _tokens(completion)
        if calls and tokens is not None and tokens >= limit:
            stop_reason = "length"
        wrong = wrong_call([call["function"] for call in calls], parameters or {})
        wrong = CUT if calls and stop_reason == "length" else wrong
        return Action(
            text=text,
            stop_reason=stop_reason,
            seconds=taken,
            tokens=tokens,
            tool_calls=[] if wrong else calls,
            reasoning=reasoning,
            malformed=wrong,
            stop=ended if ended in stop else None,
        )


def reach(name: str, endpoint: Endpoint) -> None:
    """Raise MarlError unless a policy's endpoint is reachable, accepts the key, and has the model."""
    import openai

    key = endpoint_key(name, endpoint)
    client = openai.OpenAI(base_url=endpoint.url, api_key=key, max_retries=1, timeout=REACH_SECONDS)
    with client, _without_key(endpoint, key), _converted_errors(name, endpoint):
        try:
            # the raw body: the package fails on a response that is not a list
            listed = json.loads(client.models.with_raw_response.list().http_response.text)
        except openai.NotFoundError as error:
            raise MarlError(f"/models was not found ({error}). Check that the url ends in /v1.") from error
        try:
            names = sorted(str(each["id"]) for each in listed["data"])
        except (KeyError, TypeError) as error:
            raise MarlError("/models returned no list of models. Check that the url ends in /v1.") from error
        if endpoint.model not in names:
            hint = nearest(endpoint.model, names)
            if len(names) > LISTED and not hint.startswith("did"):
                hint = f"{len(names)} models available, such as {', '.join(names[:LISTED])}"
            raise MarlError(f"no model '{endpoint.model}': {hint}")


@contextmanager
def _without_key(endpoint: Endpoint, key: str) -> Iterator[None]:
    """Remove the key from an error, in which a server may repeat it, and the causes that contain it."""
    try:
        yield
    except MarlError as error:
        if endpoint.key_variable is None or key not in "".join(traceback.format_exception(error)):
            raise
        raise type(error)(str(error).replace(key, f"[{endpoint.key_variable}]")) from None


@contextmanager
def _converted_errors(name: str, endpoint: Endpoint) -> Iterator[None]:
    """Convert errors to ObservationTooLong or MarlError, with policy and endpoint in the message."""
    import openai

    who = f"policy '{name}' at {endpoint.url}"
    try:
        yield
    except MarlError as error:
        raise MarlError(f"{who}: {error}") from error
    except openai.APITimeoutError as error:
        raise MarlError(f"{who}: no response within the time limit after several tries") from error
    except openai.APIConnectionError as error:
        cause = error.__cause__
        detail = f" ({type(cause).__name__}: {cause})" if cause is not None else ""
        raise MarlError(f"{who}: connection failed{detail}") from error
    except openai.APIStatusError as error:
        reply = _detail(error)
        if error.status_code in (400, 413) and _too_long(error.code, reply):
            raise ObservationTooLong(f"{who}: the observation exceeds the context length: {reply}") from error
        key = "the key in " + endpoint.key_variable if endpoint.key_variable else "a request without a key"
        what = f", which rejects {key}" if error.status_code in (401, 403) else ""
        raise MarlError(f"{who}: HTTP {error.status_code}{what}: {reply}") from error
    except (openai.OpenAIError, ValueError) as error:  # a body that is not JSON or has another schema
        raise MarlError(f"{who}: invalid response: {type(error).__name__}: {error}") from error


def _detail(error: Any) -> str:
    """The server's error message on one line, truncated."""
    body = error.body
    message = body.get("message") if isinstance(body, Mapping) else body
    return " ".join(str(message or error.message).split())[:400]


def _too_long(code: object, reply: str) -> bool:
    """Whether an HTTP 400 is about the context length: OpenAI sends a code, vLLM, SGLang and llama.cpp only text."""
    words = reply.lower()
    return code == "context_length_exceeded" or (
        "context" in words and any(what in words for what in ("length", "size", "window"))
    )


def _reply(completion: Any) -> tuple[str, str | None, list[dict[str, Any]], str | None]:
    """(text, finish reason, tool calls, reasoning) of a chat completion, whose schema the package does not check."""
    choices = getattr(completion, "choices", None)
    first = choices[0] if isinstance(choices, list) and choices else None
    message = getattr(first, "message", None)
    if message is None:
        raise MarlError(f"the response is not a chat completion: {completion!r:.200}. Check that the url ends in /v1.")
    text, reason = getattr(message, "content", None), getattr(first, "finish_reason", None)
    # no content: a refusal, a tool call, or reasoning up to the token limit
    functions: list[Any] = [getattr(call, "function", None) for call in getattr(message, "tool_calls", None) or ()]
    named = [each for each in functions if isinstance(getattr(each, "name", None), str)]
    calls = as_tool_calls([{"name": each.name, "arguments": each.arguments or "{}"} for each in named])
    # vLLM has called it both names
    thought = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None)
    said = text if isinstance(text, str) else ""
    return said, reason if isinstance(reason, str) else None, calls, thought if isinstance(thought, str) else None


def _tokens(completion: Any) -> int | None:
    """Number of response tokens in the server's `usage`; None if missing."""
    count = getattr(getattr(completion, "usage", None), "completion_tokens", None)
    return count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None
