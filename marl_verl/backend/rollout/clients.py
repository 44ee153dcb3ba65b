"""The clients of policies: of the run's own servers, in token ids, and of scripts, in texts."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from omegaconf import DictConfig

from marl_verl.config.policy_models import check_unrestricted
from marl_verl.episode import Act, Action
from marl_verl.episode.messages import Message, as_tool_calls
from marl_verl.errors import MarlError, user_error
from marl_verl.models.chat import Chat, before_stop, first_stop
from marl_verl.models.parsers import Parsers, structured_outputs
from marl_verl.threads import perform


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
