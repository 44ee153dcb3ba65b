"""The work of a run in this process.

Events are shown directly, and a debugger works in all code. Standard output is the terminal's, for prints and prompts
of users' code. Standard error, logging and warnings go to the log, as those of the processes of a run on Ray do.
"""

import contextlib
import importlib
import logging
import os
import sys
import threading
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO, cast
from unittest import mock

from marl_verl import events
from marl_verl.algo.sampling.scoring import end_processes
from marl_verl.config.hardware import HARDWARE_VARIABLE, RUN_VARIABLE
from marl_verl.config.placement import Pool
from marl_verl.config.stored import BACKEND
from marl_verl.errors import MarlError, RunError, after_notes, check, format_error
from marl_verl.events import emit
from marl_verl.run.progress import Display, Event
from marl_verl.run.supervisor import RunEvents
from marl_verl.threads import outside_loop
from marl_verl_local.interrupts import breakpoints


@check
def check_settings(config: Any, pools: Sequence[Pool]) -> Iterator[str]:
    """MarlError for settings that one process cannot follow."""
    where, verl = f"with {BACKEND}=local", f"or set {BACKEND}=verl"
    for pool in pools:
        if pool.size > 1:
            keys = f"gpus and nodes of marl.pools.{pool.name}" if pool.shared else "trainer.n_gpus_per_node and nnodes"
            yield f"policy '{pool.policies[0]}' has {pool.size} GPUs, but {where} it has one: set {keys} to 1, {verl}"


def run_here(work: str, folder: Path, log: Path, gpu: bool, display: Display) -> None:
    """Call the function `work` ("module:name") with the run directory. If it fails, its traceback is in the log; an
    exception of the display's callback is raised as it is."""
    shown = RunEvents(folder, display, "local")
    module, _, name = work.partition(":")

    def call() -> None:
        emit("phase", name="loading verl")
        getattr(importlib.import_module(module), name)(folder.resolve())

    with shown.shown(), contextlib.ExitStack() as context:
        context.callback(end_processes)
        context.enter_context(_environment(gpu))
        context.enter_context(_logged(log))
        context.enter_context(breakpoints(display.stop_drawing))
        failures = context.enter_context(_received(shown.handle))
        try:
            outside_loop(call)
        except Exception as error:
            traceback.print_exc()
            if error in failures:
                raise
            message = " ".join(after_notes(error, format_error(error)).split())
            raise RunError(message, log, isinstance(error, MarlError)) from error


def load() -> None:
    """Import what a run on a CPU needs, which takes seconds. An error is raised again where it is needed."""
    with _environment(gpu=False), _logged(Path(os.devnull)), contextlib.suppress(Exception):
        for name in ("marl_verl.trainer.run", "marl_verl_local.session"):
            importlib.import_module(name)


@contextlib.contextmanager
def _received(receiver: Callable[[Event], object]) -> Iterator[list[BaseException]]:
    """Call a function with the events of this process, one at a time. Yields a list for an exception of it, which every
    later event and the end of the context raise, too: code that sends events may catch it."""
    lock, failures = threading.RLock(), list[BaseException]()

    def receive(event: Event) -> None:
        with lock:
            if failures:
                raise failures[0]
            try:
                receiver(event)
            except BaseException as error:
                failures.append(error)
                raise

    previous, events.receiver = events.receiver, receive
    try:
        yield failures
    finally:
        events.receiver = previous
    if failures:
        raise failures[0]


def _environment(gpu: bool) -> contextlib.AbstractContextManager[Any]:
    """The variables of a run, as those of the processes of a run on Ray. Afterwards all are as before."""
    variables = {RUN_VARIABLE: uuid.uuid4().hex, HARDWARE_VARIABLE: "gpu" if gpu else "cpu"}
    variables["TOKENIZERS_PARALLELISM"] = "false"  # its threads and forks do not go together
    if not gpu:
        variables["TORCHDYNAMO_DISABLE"] = "1"  # compiling a tiny model takes longer than it saves
    return mock.patch.dict(os.environ, variables)


class _Stream:
    """Standard error of the work. Modules that are imported meanwhile keep it: after a run it is the terminal's."""

    def __init__(self) -> None:
        self.target: TextIO = sys.stderr

    def write(self, text: str) -> int:  # W&B keeps this method, transformers the next
        return self.target.write(text)

    def flush(self) -> None:
        self.target.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)


_STREAM = _Stream()


@contextlib.contextmanager
def _logged(log: Path) -> Iterator[None]:
    """Append standard error to a file, with the logging that goes there."""
    terminal, stream = sys.stderr, cast("TextIO", _STREAM)
    for logger in [logging.root, *logging.root.manager.loggerDict.values()]:
        for handler in getattr(logger, "handlers", ()):
            if vars(handler).get("stream") is terminal:  # of a module that was imported before
                handler.stream = stream
    with log.open("a", buffering=1, encoding="utf-8") as file, contextlib.redirect_stderr(stream):
        _STREAM.target = file
        try:
            yield
        finally:
            _STREAM.target = terminal
