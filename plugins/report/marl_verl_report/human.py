"""Script `human`: a person at the terminal reads what an agent sees, and types its actions."""

import asyncio
import os
import sys
from collections.abc import Sequence
from random import Random

from marl_verl.episode.messages import Message, message_text
from marl_verl.errors import MarlError
from marl_verl.events import emit
from marl_verl.run.terminal import harmless


class Human:
    """A script: each line that is typed is an action. After Ctrl-D all its acts fail. `trained`: for training runs."""

    alone = True  # one episode at a time, so that questions of several are not mixed

    def __init__(self, trained: bool) -> None:
        self._trained, self._left, self._acting = trained, False, asyncio.Lock()

    def check(self, training: bool, local: bool) -> None:
        """MarlError for a training run that did not ask for a person, and where there is no terminal."""
        self._left, self._acting = False, asyncio.Lock()  # of this run's event loop
        if training and not self._trained:
            raise MarlError("a person would type every action of the training. If so, set script: human-in-training")
        if not local or not sys.stdin.isatty():
            where = "standard input is none" if local else "the workers of backend 'verl' have none"
            raise MarlError(f"a person acts at a terminal, and {where}: run it with --local in a terminal")

    async def __call__(self, messages: Sequence[Message], random: Random) -> str:
        shown = ["", *(f"{message['role']}: {message_text(message)}" for message in messages)]
        async with self._acting:  # of concurrent acts
            emit("terminal")
            while not self._left:
                output = sys.stdout if sys.stdout.isatty() else sys.__stderr__
                print(harmless("\n".join(shown)), end="\nyour action (Ctrl-D: leave)> ", file=output, flush=True)
                loop, typed, descriptor = asyncio.get_running_loop(), asyncio.Event(), sys.stdin.fileno()
                loop.add_reader(descriptor, typed.set)
                try:
                    await typed.wait()
                finally:
                    loop.remove_reader(descriptor)
                line = os.read(descriptor, 1 << 16)  # a terminal gives one line at a time
                self._left = not line
                if text := line.decode(errors="replace").strip("\r\n"):
                    return text
        raise MarlError("the person has left (Ctrl-D)")


human, human_in_training = Human(trained=False), Human(trained=True)
