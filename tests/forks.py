"""Functions called in a fork of this process, which has imported torch and verl already."""

import multiprocessing
from collections.abc import Callable
from typing import Any

FORKS = multiprocessing.get_context("fork")


def in_fork(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns in a fork; its error is printed, and raised here as an EOFError."""
    ours, theirs = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=lambda: theirs.send(function(*arguments)))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    finally:
        process.join(10)
        process.kill()
