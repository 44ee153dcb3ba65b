"""A policy outside the run: a server that speaks OpenAI's chat completions.

    POST url/chat/completions   {model, messages, temperature, top_p, max_tokens, seed}, and top_k where it is set
    GET  url/models             once, before a run starts

It takes messages and gives a text. Nothing of that text is made into tokens here: such a policy never learns, and how
long an answer is says the server's `usage`. Retries with growing pauses (rate limits, errors of the server, lost
connections) are those of the `openai` package.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from marl_verl.config.policy_models import endpoint_key
from marl_verl.episode import Action, Message
from marl_verl.errors import MarlError, nearest
from marl_verl.rollout.context import ObservationTooLong
from marl_verl.team import Endpoint

RETRIES = 5
"""With the package's pauses (0.5 s, doubled each time, or what the server asks for) about 15 s in all."""
REACH_SECONDS = 10.0
LISTED = 10
"""Names of models that an error shows at most."""


class EndpointClient:
    """A `Client` of an endpoint. MarlError if the environment variable with its key is not set.

    `max_tokens` are the endpoint's own. `request_seconds` limit one try, `marl.rollout.act_seconds` all tries together.
    """

    def __init__(
        self,
        name: str,
        endpoint: Endpoint,
        sampling: Mapping[str, Any],
        max_tokens: int,
        retries: int = RETRIES,
        request_seconds: float = 600.0,
    ) -> None:
        from openai import AsyncOpenAI

        self.name, self.endpoint, self.max_tokens = name, endpoint, max_tokens
        self.sampling = {key: sampling[key] for key in ("temperature", "top_p", "top_k")}
        self._client = AsyncOpenAI(
            base_url=endpoint.url, api_key=endpoint_key(name, endpoint), max_retries=retries, timeout=request_seconds
        )

    async def answer(self, messages: Sequence[Message], sampling: Mapping[str, Any], request_id: str) -> Action:
        """See `Client`: text and number of tokens, no ids and no log-probabilities. An empty text is an answer."""
        begun = time.monotonic()
        limit = sampling.get("max_tokens") or self.max_tokens
        top_k = sampling.get("top_k") or -1
        with _told(self.name, self.endpoint):
            completion: Any = await self._client.chat.completions.create(
                model=self.endpoint.model,
                messages=list(messages),  # type: ignore[arg-type]  # theirs is a class for every role
                temperature=sampling["temperature"],
                top_p=sampling["top_p"],
                max_tokens=min(limit, self.max_tokens),
                seed=sampling["seed"],
                # no field of OpenAI's, and refused there; vLLM and others take it
                extra_body={"top_k": top_k} if top_k > 0 else None,
            )
            text, stop_reason = _said(completion)
        return Action(text=text, stop_reason=stop_reason, seconds=time.monotonic() - begun, tokens=_tokens(completion))


def reach(name: str, endpoint: Endpoint) -> None:
    """Raise MarlError unless a policy's endpoint is there, takes the key, and has the model."""
    import openai

    client = openai.OpenAI(
        base_url=endpoint.url, api_key=endpoint_key(name, endpoint), max_retries=1, timeout=REACH_SECONDS
    )
    with client, _told(name, endpoint):
        try:
            # as it was sent: the package's own reading fails on what is no list
            listed = json.loads(client.models.with_raw_response.list().http_response.text)
        except openai.NotFoundError as error:
            raise MarlError(f"there is no list of models at its /models (does its url end in /v1?): {error}") from error
        try:
            names = sorted(str(each["id"]) for each in listed["data"])
        except (KeyError, TypeError) as error:
            raise MarlError("what its /models says is no list of models (does its url end in /v1?)") from error
        if endpoint.model not in names:
            hint = nearest(endpoint.model, names)
            if len(names) > LISTED and not hint.startswith("did"):
                hint = f"it has {len(names)}, such as {', '.join(names[:LISTED])}"
            raise MarlError(f"it has no model '{endpoint.model}': {hint}")


@contextmanager
def _told(name: str, endpoint: Endpoint) -> Iterator[None]:
    """Raise what goes wrong as ObservationTooLong or MarlError, in one sentence that names policy and endpoint."""
    import openai

    who = f"policy '{name}' at {endpoint.url}"
    try:
        yield
    except MarlError as error:
        raise MarlError(f"{who}: {error}") from error
    except openai.APITimeoutError as error:
        raise MarlError(f"{who}: no answer in time, several tries") from error
    except openai.APIConnectionError as error:
        cause = error.__cause__
        detail = f" ({type(cause).__name__}: {cause})" if cause is not None else ""
        raise MarlError(f"{who}: it cannot be reached{detail}") from error
    except openai.APIStatusError as error:
        reply = _detail(error)
        if error.status_code in (400, 413) and _too_long(error.code, reply):
            raise ObservationTooLong(f"{who}: the observation does not fit: {reply}") from error
        key = "the key in " + endpoint.key_variable if endpoint.key_variable else "a request without a key"
        what = f"it refuses {key}" if error.status_code in (401, 403) else "it answers"
        raise MarlError(f"{who}: {what} with HTTP {error.status_code}: {reply}") from error
    except (openai.OpenAIError, ValueError) as error:  # a body that is not JSON, or of another shape
        raise MarlError(f"{who}: its answer cannot be read: {type(error).__name__}: {error}") from error


def _detail(error: Any) -> str:
    """What the server says, on one line and not for ever."""
    body = error.body
    message = body.get("message") if isinstance(body, Mapping) else body
    return " ".join(str(message or error.message).split())[:400]


def _too_long(code: object, reply: str) -> bool:
    """Servers agree on HTTP 400 and on no more: OpenAI has a code for it, vLLM, SGLang and llama.cpp a sentence."""
    words = reply.lower()
    return code == "context_length_exceeded" or (
        "context" in words and any(what in words for what in ("length", "size", "window"))
    )


def _said(completion: Any) -> tuple[str, str | None]:
    """(text, why it ended) of a chat completion, which the package does not check."""
    choices = getattr(completion, "choices", None)
    first = choices[0] if isinstance(choices, list) and choices else None
    message = getattr(first, "message", None)
    if message is None:
        raise MarlError(f"what it answers is no chat completion (does its url end in /v1?): {completion!r:.200}")
    text, reason = getattr(message, "content", None), getattr(first, "finish_reason", None)
    # no content: it refused, called a tool, or thought until its limit
    return text if isinstance(text, str) else "", reason if isinstance(reason, str) else None


def _tokens(completion: Any) -> int | None:
    """Tokens of the answer as the server counts them; None where it does not."""
    count = getattr(getattr(completion, "usage", None), "completion_tokens", None)
    return count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None
