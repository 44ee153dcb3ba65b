"""A conversation of one agent: each of its prompts repeats all that was said, so that its turns train as one sequence.

conversation = team["solver"].conversation(system="Be brief.")
draft = await conversation.act(task.prompt)
better = await conversation.act("Check each step.")
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from marl_verl.episode.messages import Message, as_observation
from marl_verl.episode.turn import Action


class Conversation:
    """What was said in a conversation with an agent, from `team[agent].conversation()`.

    Attributes:
        messages: the conversation so far, in the chat format; the agent's instructions precede it when sampling.
    """

    __slots__ = ("_act", "messages")

    def __init__(self, act: Callable[..., Awaitable[Action]], system: str | None) -> None:
        self._act = act
        self.messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]

    async def act(self, said: str | Sequence[Mapping[str, Any]], **parameters: Any) -> Action:
        """Say something to the agent and return its action, which becomes the last message.

        Args:
            said: a text (one user message), or messages such as results of tools.
            parameters: of the request, as of `Member.act`.
        """
        seen = [*self.messages, *as_observation(said)]
        action = await self._act(seen, **parameters)
        self.messages = [*seen, action.message]
        return action
