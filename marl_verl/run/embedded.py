"""Work in this process (`marl.run.backend: local`): its events are shown directly, and a debugger works in all code.

Standard output is the terminal's, for prints and prompts of users' code. Standard error, logging and warnings go to the
log, as those of the processes of a run on Ray do.
"""

import contextlib
import importlib
import logging
import os
import sys
import traceback
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO, cast

from marl_verl.algo.sampling.scoring import end_processes
from marl_verl.config.hardware import HARDWARE_VARIABLE, RUN_VARIABLE
from marl_verl.errors import MarlError, RunError, format_error
from marl_verl.events import emit, received
from marl_verl.run.progress import Display, RunEvents, interrupted
from marl_verl.run.terminal import termination_as_interrupt
from marl_verl.threads import breakpoints, outside_loop


@termination_as_interrupt()
def run(work: str, folder: Path, log: Path, gpu: bool, display: Display, begun: float) -> None:
    """Call the function `work` ("module:name") with the run directory. SIGTERM and SIGHUP act as Ctrl-C.

    RunError if it fails, with its traceback in the log; KeyboardInterrupt with the message that was printed; an
    exception of the display's callback is raised as it is.
    """
    events = RunEvents(folder, display, "local", begun)
    module, _, name = work.partition(":")

    def call() -> None:
        emit("phase", name="loading verl")
        getattr(importlib.import_module(module), name)(folder.resolve())

    try:
        with _environment(gpu), _logged(log), breakpoints(display.stop_drawing), received(events.handle) as failures:
            try:
                outside_loop(call)
            except Exception as error:
                traceback.print_exc()
                if error in failures:
                    raise
                message = " ".join(format_error(error).split())
                raise RunError(message, log, isinstance(error, MarlError)) from error
    except KeyboardInterrupt as error:
        raise interrupted(folder, display) from error
    finally:
        display.close()
        end_processes()


def load() -> None:
    """Import what a run on a CPU needs, which takes seconds. An error is raised again where it is needed."""
    with _environment(gpu=False), _logged(Path(os.devnull)), contextlib.suppress(Exception):
        for name in ("marl_verl.trainer.run", "marl_verl.backend.local.session"):
            importlib.import_module(name)


@contextlib.contextmanager
def _environment(gpu: bool) -> Iterator[None]:
    """Set the variables of a run, as those of the processes of a run on Ray. Afterwards all are as before."""
    variables = {RUN_VARIABLE: uuid.uuid4().hex, HARDWARE_VARIABLE: "gpu" if gpu else "cpu"}
    variables["TOKENIZERS_PARALLELISM"] = "false"  # its threads and forks do not go together
    if not gpu:
        variables["TORCHDYNAMO_DISABLE"] = "1"  # compiling a tiny model takes longer than it saves
    before = dict(os.environ)
    os.environ |= variables
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ |= before


class _Stream:
    """Standard error of the work. Modules that are imported meanwhile keep it: after a run it is the terminal's."""

    def __init__(self) -> None:
        self.target: TextIO = sys.stderr

    def write(self, text: str) -> int:
        return self.target.write(text)

    def flush(self) -> None:  # transformers keeps this method
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
