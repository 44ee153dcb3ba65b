"""Scripted policies: a plugin's function acts in place of a model (`registry.script`)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from marl_verl.backend.rollout.context import default_sampling
from marl_verl.episode import Action, Message, perform
from marl_verl.errors import MarlError


class ScriptClient:
    """A `Client` of the function `act(messages, random) -> text`, which may be async.

    Args:
        policy: name of the policy, for errors.
        script: registered name of the function.
        sampling: default sampling parameters, of which only `seed` reaches the function.
    """

    def __init__(self, policy: str, script: str, act: Callable[..., Any], sampling: Mapping[str, Any]) -> None:
        self.whose, self.act = f"script '{script}' of policy '{policy}'", act
        self.sampling = default_sampling(sampling)

    def too_long(self, messages: Sequence[Message], tools: Sequence[Any] | None) -> str | None:
        """None: a function has no limit."""
        return None

    async def answer(
        self,
        messages: Sequence[Message],
        sampling: Mapping[str, Any],
        request_id: str,
        parameters: Mapping[str, Any] | None = None,
        former: Action | None = None,
    ) -> Action:
        """See `Client`: a text only. MarlError where the function fails or returns no text."""
        begun, drawn = time.monotonic(), random.Random(sampling.get("seed"))
        try:
            text = await perform(self.act, (list(messages), drawn))
        except Exception as error:
            raise MarlError(f"{self.whose}: {type(error).__name__}: {error}") from error
        if not isinstance(text, str):
            raise MarlError(f"{self.whose} must return a text, got {text!r:.80}")
        return Action(text=text, seconds=time.monotonic() - begun)
