"""Replaces the trainer in tests of `marl_verl_local.run_here`: functions that take a run directory.

python -m tests.embedded_work NAME FOLDER    does the work NAME in this process, as `marl-verl train --local` would
"""

import asyncio
import logging
import os
import sys
import time
from pathlib import Path

from marl_verl_local import run_here

from marl_verl.algo.sampling.scoring import scored
from marl_verl.cli.main import reported
from marl_verl.errors import MarlError
from marl_verl.events import emit
from marl_verl.run.progress import Display
from marl_verl.threads import Limit, perform


def steps(folder: Path) -> None:
    """Two steps, with output of every kind."""
    emit("started")
    if not logging.getLogger("marl").handlers:  # as a module that is imported
        logging.getLogger("marl").addHandler(logging.StreamHandler())
    for step in (1, 2):
        print(f"printed in step {step}")
        print("to standard error", file=sys.stderr)
        logging.getLogger("verl.some.module").warning("logged in step %d", step)
        logging.getLogger("marl").warning("logged by a new module in step %d", step)
        emit("step", step=step, steps=2, metrics={"seconds/step": 0.1, "train/success": 0.5, "agent/a/reward": 0.5})


def mistake(folder: Path) -> None:
    raise MarlError("a mistake\nof the user")


def bug(folder: Path) -> None:
    error = ValueError("a bug")
    error.add_note("policy 'a'")  # as of one that does not start
    raise error


def hang(folder: Path) -> None:
    """In an event loop, as the sampling of a run."""
    asyncio.run(_hang())


async def _hang() -> None:
    emit("doing", activity="while hanging", phases=["hanging"])
    while True:
        await asyncio.sleep(0.01)
        time.sleep(0.01)


def environment(folder: Path) -> None:
    os.environ["SET_BY_A_RUN"] = "1"
    print(os.environ["MARL_VERL_HARDWARE"], bool(os.environ["MARL_VERL_RUN"]))


def stop_in_call(folder: Path) -> None:
    """A breakpoint in the function of a `team.call`, in one of a score and in a workflow, each with a short limit."""
    asyncio.run(_stop())


async def _stop() -> None:
    emit("step", step=1, steps=9, metrics={"seconds/step": 0.1, "train/success": 0.5, "agent/a/reward": 0.5})
    print("called", await perform(double, (4,), 0.5))
    print("scored", *await scored(double, [(5,)], 0.5))
    async with Limit(0.2):
        print("own", double(6))
        await asyncio.sleep(0.5)


def double(number: int) -> int:
    twice = 2 * number
    breakpoint()
    return twice


if __name__ == "__main__":
    work, place = f"tests.embedded_work:{sys.argv[1]}", Path(sys.argv[2])

    def call() -> int:
        run_here(work, place, place / "train.log", False, Display())
        print("finished")
        return 0

    sys.exit(reported(call))
