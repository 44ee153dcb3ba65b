"""The command `train` in this process: a child plans the run, which takes seconds, as importing verl does."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from marl_verl.api import alone, planned, trained
from marl_verl.cli.main import reported
from marl_verl.config.stored import read_config
from marl_verl.run.prepare import make_run_directory
from marl_verl.run.progress import Display
from marl_verl.run.run_dir import locked
from marl_verl.run.supervisor import prctl
from marl_verl_local.process import load

PATIENCE = 2.0  # seconds until a child is interrupted, and killed, if it does not end


def train(recipe: Path, overrides: list[str], options: argparse.Namespace) -> int:
    """As `marl-verl train` with these options. Returns the exit code."""
    display, lines = Display(), [*overrides, *([f"marl.run.backend={options.backend}"] if options.backend else [])]

    def plan(writing: int) -> int:
        made = planned(display, recipe, lines, options.plugin)
        os.write(writing, os.fsencode(make_run_directory(made, display)))
        return 0

    with alone():
        try:
            folder = Path(in_child(lambda writing: reported(lambda: plan(writing), options.debug), load))
        except SystemExit as ended:
            return int(ended.code or 1)
        with locked(folder) as lock:
            trained(folder, read_config(folder / "config.yaml"), display, lock)
    return 0


def in_child(work: Callable[[int], int], meanwhile: Callable[[], object]) -> str:
    """The text that `work` writes to a file descriptor, in a forked child, while this process does `meanwhile`.

    Call it in the main thread of a process without others. SystemExit ends `meanwhile` early: with the exit code that
    `work` returned if it is not 0; with 130 after Ctrl-C, when the child has ended, too.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        code = 1
        try:
            prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: if this process is killed
            code = work(writing)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    os.close(writing)

    def check(option: int = os.WNOHANG) -> bool:
        """Whether the child has ended. SystemExit if it failed."""
        ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | option)
        if ended is not None and ended.si_code != os.CLD_EXITED:
            raise RuntimeError(f"the process that checks the run was killed (signal {ended.si_status})")
        if ended is not None and ended.si_status:
            raise SystemExit(ended.si_status)
        return ended is not None

    before = signal.signal(signal.SIGCHLD, lambda *_: check())
    try:
        meanwhile()
        with open(reading) as pipe:
            text = pipe.read()
        check(0)
        return text
    except KeyboardInterrupt:
        for number in (signal.SIGINT, signal.SIGKILL):
            until = time.monotonic() + PATIENCE
            while time.monotonic() < until and not check():  # a terminal has interrupted the child already
                time.sleep(0.1)
            os.kill(child, number)
        raise SystemExit(130) from None
    finally:
        signal.signal(signal.SIGCHLD, before)
        os.waitpid(child, 0)
