"""Clients of a run's own policy servers: messages are encoded once, requests and responses are token ids."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig

from marl_verl.backend.rollout.context import Client, ObservationTooLong, default_sampling
from marl_verl.episode import Act, Action
from marl_verl.episode.messages import Message, as_tool_calls
from marl_verl.errors import MarlError
from marl_verl.models.chat import Chat, before_stop, first_stop
from marl_verl.models.parsers import Parsers, structured_outputs


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
        self.sampling = {
            **default_sampling(config.rollout),
            "repetition_penalty": 1.0,
            "logprobs": bool(config.rollout.calculate_log_probs),
        }
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
        if (why := self.too_long(messages, tools, former)) is not None:
            raise ObservationTooLong(why)
        return list(self.chat.encode(messages, tools, *_begun(former, messages)))

    def too_long(
        self, messages: Sequence[Message], tools: Sequence[Any] | None, former: Action | None = None
    ) -> str | None:
        """See `Client`. The chat keeps the token ids for the request that follows."""
        length = len(self.chat.encode(messages, tools, *_begun(former, messages)))
        if length <= self.prompt_length:
            return None
        return (
            f"an observation of {length} tokens exceeds the limit of policy '{self.name}', {self.prompt_length} "
            f"(data.max_prompt_length, or marl.policies.{self.name}.rollout.prompt_length for this policy)"
        )

    async def answer(self, messages: list[Message], sampling: Mapping[str, Any], request_id: str, act: Act) -> Action:
        """See `Client`. `sampling` is passed to vLLM unchanged except for `max_tokens` and `stop`.

        The token ids of an action include what ended it: a stop token, or the tokens of a stop string. Its text is
        without both, as in OpenAI's API.
        """
        begun = time.monotonic()
        asked = act.parameters or {}
        prompt_ids = self.encode(messages, asked.get("tools"), act.former)
        limit = sampling.get("max_tokens") or self.response_length
        stop, tokens = self.chat.stops(self.stop if sampling.get("stop") is None else sampling["stop"])
        ends = self.ends.union(tokens)
        params = {**sampling, "max_tokens": min(limit, self.response_length), "stop": stop}
        params["stop_token_ids"] = sorted(ends)
        if (restricted := structured_outputs(asked)) is not None:
            params["structured_outputs"] = restricted
        sent: dict[str, Any] = {"prompt_ids": prompt_ids, "sampling_params": params, **self._server_options}
        output = await self.client.generate(request_id, **sent)
        ids = [int(token) for token in output.token_ids]
        if not ids:
            raise MarlError(f"the server of policy '{self.name}' returned an empty completion")
        ended = ids[-1] in ends
        # spaces as sampled: vLLM compares stop strings with this text
        said = ids[:-1] if ended else ids
        text = self.chat.tokenizer.decode(said, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        before = before_stop(text, stop)
        whole = self.chat.tokenizer.decode(said, clean_up_tokenization_spaces=False)
        opening = self._opening(prompt_ids, messages) if self.parsers.reasoning else ""
        parsed = self.parsers.parse(
            text if before is None else before,
            whole if before is None else before_stop(whole, stop) or before,
            asked,
            opening,
            cut=not ended and before is None,
        )
        return Action(
            text=parsed.text,
            prompt_ids=prompt_ids,
            response_ids=ids,
            log_probs=list(output.log_probs or []),
            stop_reason="stop" if ended or before is not None else "length",
            version=output.extra_fields.get("global_steps"),
            seconds=time.monotonic() - begun,
            tool_calls=as_tool_calls(parsed.calls),
            reasoning=parsed.reasoning,
            malformed=parsed.malformed,
            stop=first_stop(text, stop) or (self.chat.tokenizer.decode(ids[-1:]) if ids[-1] in tokens else None),
        )

    def _opening(self, prompt_ids: Sequence[int], messages: Sequence[Message]) -> str:
        """The text of a prompt after its last message, in which a template may have opened or closed the reasoning."""
        prompt = self.chat.tokenizer.decode(prompt_ids, clean_up_tokenization_spaces=False)
        content = messages[-1]["content"].strip()
        return str(prompt.rpartition(content)[2] if content else prompt)


def _begun(former: Action | None, messages: Sequence[Message]) -> tuple[list[int], int]:
    """(the tokens of a turn, how many of them are its reply if that is one of the messages); none of an action without
    ids."""
    if former is None or not former.response_ids:
        return [], 0
    reply = len(former.response_ids) if former.message in messages else 0
    return [*former.prompt_ids, *former.response_ids], reply
