"""The client of an external endpoint: a server outside the run with OpenAI's chat completions API.

    POST url/chat/completions   {model, messages, temperature, top_p, max_tokens, seed}; top_k, min_p, stop where set
    GET  url/models             once, before a run starts

Its texts are not tokenized, because such a policy never learns; lengths are those of the server's `usage`. The `openai`
package retries with exponential backoff after rate limits, server errors and lost connections.
"""

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from marl_verl.backend.rollout.clients import Client, ObservationTooLong, default_sampling
from marl_verl.episode import Act, Action
from marl_verl.episode.messages import Message, as_tool_calls
from marl_verl.errors import MarlError, format_error, nearest
from marl_verl.models.parsers import CUT, wrong_call
from marl_verl.team import Endpoint

RETRIES = 5  # about 15 s in total with the package's backoff (0.5 s, doubled each time, unless the server specifies it)
REACH_SECONDS = 10.0
SECRET = re.compile("key|token|secret|passw|signature", re.IGNORECASE)  # in the query of a URL
TAGS = re.compile(r"<(style|script)\b.*?</\1[^>]*>|</?[a-z!][^>]*>", re.IGNORECASE | re.DOTALL)
NO_KEY = "none"  # the `openai` package requires a key, even for a server that needs none
PASSED = ("tools", "tool_choice", "parallel_tool_calls", "response_format")


def check(name: str, endpoint: Endpoint) -> None:
    """MarlError for an invalid address or a missing key of policy `name`'s endpoint. Makes no request."""
    parts = urlsplit(endpoint.url)
    if parts.scheme not in ("http", "https") or "@" in parts.netloc or SECRET.search(parts.query):
        example = "such as http://localhost:8000/v1, without a key or a password, since a run stores its config"
        raise MarlError(f"'marl.policies.{name}.endpoint.url' must be an HTTP URL {example}")
    endpoint_key(name, endpoint)


def endpoint_key(name: str, endpoint: Endpoint) -> str:
    """The API key of policy `name`'s endpoint. MarlError where its environment variable is not set."""
    if endpoint.key_variable is None:
        return NO_KEY
    key = os.environ.get(endpoint.key_variable, "").strip()
    if not re.fullmatch("[!-~]+", key):  # an HTTP client would show it; the name, too, may be the key itself
        where = f"'marl.policies.{name}.endpoint.key_variable'"
        raise MarlError(f"{where} must name an exported environment variable with a key of ASCII letters and signs")
    return key


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
        with reported(self.name, self.endpoint, self._key):
            completion: Any = await self._client.chat.completions.create(
                model=self.endpoint.model,
                messages=list(messages),
                temperature=sampling["temperature"],
                top_p=sampling["top_p"],
                max_tokens=limit,
                seed=sampling.get("seed", omit),
                stop=list(stop) or omit,
                extra_body=beyond or None,  # OpenAI rejects these fields; vLLM and others accept them
                **{name: asked.get(name, omit) for name in PASSED},
            )
            action = _action(completion, asked, limit)
        return replace(action, seconds=time.monotonic() - begun, stop=action.stop if action.stop in stop else None)


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
    with client, reported(name, endpoint, key):
        # the raw body: the package fails on a response that is not a list
        listed = json.loads(client.models.with_raw_response.list().http_response.text)
        models = listed.get("data") if isinstance(listed, dict) else None
        names = [str(model["id"]) for model in models or () if isinstance(model, dict) and "id" in model]
        if endpoint.model not in names:
            hint = nearest(endpoint.model, names) if names else "/models lists none. Check that the url ends in /v1"
            raise MarlError(f"no model '{endpoint.model}': {hint}")


@contextmanager
def reported(name: str, endpoint: Endpoint, key: str) -> Iterator[None]:
    """Convert errors to MarlError, with policy and endpoint in the message and without the key and the causes, in which
    a server may repeat it."""
    import openai

    kind, width = MarlError, 400
    try:
        yield
    except (AttributeError, IndexError, TypeError) as error:
        text = f"not a completion ({error}). Check that the url ends in /v1"
    except openai.APIStatusError as error:
        body = error.body.get("message") if isinstance(error.body, Mapping) else error.body
        text, width = f"HTTP {error.status_code} of {error.request.url.path}: {body or error.message}", 240
        kind = ObservationTooLong if error.status_code in (400, 413) and _too_long(error.code, text.lower()) else kind
    except (MarlError, openai.OpenAIError, ValueError) as error:  # ValueError: a body that is not JSON
        text = f"{format_error(error)} ({error.__cause__})" if error.__cause__ is not None else format_error(error)
    else:
        return
    if endpoint.key_variable is not None:
        text = text.replace(key, f"[{endpoint.key_variable}]")
    raise kind(f"policy '{name}' at {endpoint.url}: {one_line(text, width)}") from None


def one_line(text: str, width: int) -> str:
    """A text with that of a server, which may be a page, in an error message: the beginning, without HTML tags."""
    return " ".join(TAGS.sub(" ", text).split())[:width]


def _too_long(code: object, reply: str) -> bool:
    """Whether an HTTP 400 is about the context length: OpenAI sends a code, vLLM, SGLang and llama.cpp only text."""
    text = "context" in reply and any(word in reply for word in ("length", "size", "window"))
    return code == "context_length_exceeded" or text
