"""Script `human`: a person reads what an agent sees, and types its actions, at the terminal or on a served page."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from random import Random
from typing import Any, ClassVar

from marl_verl.episode.messages import Message, message_text
from marl_verl.errors import MarlError
from marl_verl.events import emit
from marl_verl.run.terminal import harmless


class Page:
    """Asks on the page of a server in this process, which shows the `question` and calls `answer` in another thread."""

    def __init__(self) -> None:
        self.question: dict[str, Any] | None = None
        self._asked, self._reply = 0, Future[str | None]()

    async def ask(self, messages: Sequence[Message]) -> str | None:
        self._asked, self._reply = self._asked + 1, Future()
        observation = [[message["role"], message_text(message)] for message in messages]
        self.question = {"number": self._asked, "observation": observation}
        try:
            return await asyncio.wrap_future(self._reply)
        finally:
            self.question = None

    def answer(self, number: object, text: str | None) -> None:
        """Answer the question with this number; None: the person leaves. MarlError: it is no longer asked."""
        with contextlib.suppress(InvalidStateError):  # its time is up just now
            if (self.question or {}).get("number") == number:
                self.question = None
                self._reply.set_result(text)
                return
        raise MarlError("this act is no longer asked for: it was answered, or its time is up")


class Human:
    """A script: each typed text is an action. After a person has left, acts fail. `trained`: for training runs."""

    alone = True  # one episode at a time, so that questions of several are not mixed
    page: ClassVar[Page | None] = None
    """Where the person acts, if not at the terminal: set while a server plays what its page has asked for."""

    def __init__(self, trained: bool) -> None:
        self._trained, self._left, self._acting = trained, False, asyncio.Lock()

    def check(self, training: bool, local: bool) -> None:
        """MarlError for a training run that did not ask for a person, and without a terminal or page to act on."""
        self._left, self._acting = False, asyncio.Lock()  # of this run's event loop
        if training and not self._trained:
            raise MarlError("a person would type every action of the training. If so, set script: human-in-training")
        if not local or not (self.page or sys.stdin.isatty()):
            where = "standard input is none" if local else "the workers of backend 'verl' have none"
            why = f"a person acts at a terminal, and {where}: run it with --local in a terminal"
            raise MarlError(f"{why}, or use the page of `marl-verl watch RUN`")

    async def __call__(self, messages: Sequence[Message], random: Random) -> str:
        ask = self.page.ask if self.page else _ask_at_terminal
        async with self._acting:  # of concurrent acts
            while not self._left:
                text = await ask(messages)
                self._left = text is None
                if text:
                    return text
        raise MarlError("the person has left")


async def _ask_at_terminal(messages: Sequence[Message]) -> str | None:
    """The line that is typed; None after Ctrl-D."""
    emit("terminal")
    shown = ["", *(f"{message['role']}: {message_text(message)}" for message in messages)]
    output = sys.stdout if sys.stdout.isatty() else sys.__stderr__
    print(harmless("\n".join(shown)), end="\nyour action (Ctrl-D: leave)> ", file=output, flush=True)
    loop, typed, descriptor = asyncio.get_running_loop(), asyncio.Event(), sys.stdin.fileno()
    loop.add_reader(descriptor, typed.set)
    try:
        await typed.wait()
    finally:
        loop.remove_reader(descriptor)
    line = os.read(descriptor, 1 << 16)  # a terminal gives one line at a time
    return line.decode(errors="replace").strip("\r\n") if line else None


human, human_in_training = Human(trained=False), Human(trained=True)
