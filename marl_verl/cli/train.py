"""`marl-verl train RECIPE [key=value ...]`: check the recipe, prepare models, run the trainer, show progress."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from marl_verl.api import alone, planned, train, trained
from marl_verl.cli.arguments import add_backend_argument, add_plugin_argument, add_variant_arguments, show_variants
from marl_verl.config.hardware import has_accelerator
from marl_verl.config.variants import variant_overrides
from marl_verl.errors import MarlError

PATIENCE = 2.0
"""Seconds until a child is interrupted, and killed, if it does not end."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    recipe = "YAML file that begins with defaults: [marl_trainer, _self_]"
    overrides = "e.g. trainer.total_training_steps=20 marl.run.seed=1"
    parser.add_argument("recipe", nargs="?", type=Path, help=recipe)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=overrides)
    add_variant_arguments(parser)
    add_plugin_argument(parser)
    add_backend_argument(parser)
    parser.add_argument("--resume", type=Path, metavar="RUN", help="continue the run in this directory")
    dry_run = "check everything, print the resolved team, start nothing"
    parser.add_argument("--dry-run", action="store_true", help=dry_run)


def run(options: argparse.Namespace) -> int:
    """Train. With --resume the first positional argument is an override."""
    recipe, overrides = options.recipe, options.overrides
    if options.resume is not None:
        if options.variant or options.variants:
            raise MarlError("a continued run keeps its variant: leave --variant out, or start a new run")
        recipe, overrides = None, [str(word) for word in (recipe, *overrides) if word is not None]
    elif recipe is not None:
        if options.variants:
            return show_variants(recipe)
        overrides = [*variant_overrides(recipe, options.variant), *overrides]
    if recipe is not None and options.own_process and _begins_locally(options, overrides):
        return _train_while_planning(recipe, overrides, options)
    how = {"resume": options.resume, "dry_run": options.dry_run}
    train(recipe, overrides, plugins=options.plugin, backend=options.backend, **how)
    return 0


def _begins_locally(options: argparse.Namespace, overrides: list[str]) -> bool:
    """Whether a new run will probably work in this process, which can import verl while a child plans the run."""
    if options.dry_run or has_accelerator() or sys.platform != "linux":
        return False
    key = "marl.run.backend"
    if options.backend is not None or any(line.startswith(key) for line in overrides):
        return options.backend is not None or f"{key}=local" in overrides
    return options.recipe.is_file() and "backend: local" in options.recipe.read_text(errors="replace")


def _train_while_planning(recipe: Path, overrides: list[str], options: argparse.Namespace) -> int:
    """As `train`: a child plans the run, which takes seconds, as importing verl does."""
    from marl_verl.cli.main import reported
    from marl_verl.config.stored import read_config
    from marl_verl.run import supervisor
    from marl_verl.run.prepare import make_run_directory
    from marl_verl.run.progress import Display
    from marl_verl.run.run_dir import locked

    display, lines = Display(), [*overrides, *([f"marl.run.backend={options.backend}"] if options.backend else [])]

    def plan(writing: int) -> int:
        made = planned(display, recipe, lines, options.plugin)
        os.write(writing, os.fsencode(make_run_directory(made, display)))
        return 0

    with alone():
        try:
            folder = Path(in_child(lambda writing: reported(lambda: plan(writing), options.debug), supervisor.load))
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
    from marl_verl.run.supervisor import prctl

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
