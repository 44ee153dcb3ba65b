"""Arms of a comparison: recipes with overrides, each trained with several seeds, and what is measured of their runs."""

import argparse
import os
import shlex
import shutil
import signal
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

from marl_verl.cli.main import reported
from marl_verl.config.variants import variant_overrides
from marl_verl.errors import MarlError, RunError, check_known, unknown
from marl_verl.extensions import extension
from marl_verl.files import read_json
from marl_verl.run.reading import Run
from marl_verl.run.run_dir import STARTS
from marl_verl.run.terminal import show

PERIOD = 30.0  # seconds without a finished run after which it is said what the runs do
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # wait while a run is forked: what they raise there gets lost


@dataclass(frozen=True)
class Arm:
    """What is trained, without the seed."""

    recipe: Path
    overrides: tuple[str, ...]

    @classmethod
    def parse(cls, words: Sequence[str]) -> "Arm":
        """The arm of the words of `marl-verl train`. MarlError for an unknown option or variant."""
        parser = argparse.ArgumentParser(exit_on_error=False, add_help=False, allow_abbrev=False)
        parser.add_argument("recipe", type=Path)
        parser.add_argument("overrides", nargs="*")
        parser.add_argument("--variant", action="append", default=[])
        options, rest = parser.parse_known_args(list(words))
        if wrong := [word for word in rest if word.startswith("-")]:
            raise MarlError(f"arm '{shlex.join(words)}': unknown option '{wrong[0]}', an arm may have --variant NAME")
        overrides = (*variant_overrides(options.recipe, options.variant), *options.overrides, *rest)
        return cls(options.recipe, overrides)


@dataclass(frozen=True)
class Cell:
    """A run of an arm with one seed, in a folder of its own."""

    arm: Arm
    seed: int
    folder: Path
    plugins: tuple[Path, ...] = ()

    @property
    def overrides(self) -> list[str]:
        place = [f"marl.run.dir={self.folder.parent}", f"marl.run.name={self.folder.name}"]
        return [*self.arm.overrides, f"marl.run.seed={self.seed}", *place]

    @property
    def log(self) -> Path:
        return self.folder.with_suffix(".log")

    def complete(self) -> bool:
        """Whether the run has been trained. MarlError if another run is in its folder."""
        if (self.folder / STARTS).is_file():
            arguments = tuple(read_json(self.folder / STARTS)[0]["arguments"])
            if arguments != (str(self.arm.recipe), *self.overrides, *(f"--plugin={file}" for file in self.plugins)):
                other = shlex.join(arguments)
                raise MarlError(f"'{self.folder}' is a run of another command, '{other}': give another --dir")
        return Run(self.folder).summary is not None


def trained(cells: Sequence[Cell], jobs: int, then: Callable[[Cell], object] = Cell.complete) -> Iterator[Cell]:
    """Train cells that are not complete, at most `jobs` at a time; yields each when it is complete, in any order.

    Each run is a forked child, so that verl is imported once, which then calls `then`. An exception, Ctrl-C included,
    ends all of them. RunError: a run failed; the reason is the last line of its log.
    """
    waiting = [cell for cell in cells if not cell.complete()]
    yield from (cell for cell in cells if cell not in waiting)
    if waiting:
        _import_once(jobs)
    context, running = get_context("fork"), dict[Any, tuple[Any, Cell]]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                cell = waiting.pop(0)
                child = context.Process(target=_train, args=(cell, then), name=cell.folder.name)
                signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
                try:
                    child.start()
                finally:
                    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
                running[child.sentinel] = child, cell
            ready = connection.wait(list(running), PERIOD)
            if not ready:
                show("; ".join(f"{cell.folder.name}: {_last_line(cell)}" for _, cell in running.values()))
            for ended in ready:
                child, cell = running.pop(ended)
                child.join()
                if child.exitcode:
                    reason = _last_line(cell).removeprefix("marl-verl: ")
                    raise RunError(f"run '{cell.folder.name}': {reason}", cell.log, child.exitcode == 2)
                yield cell
    finally:
        for child, _ in running.values():
            child.terminate()  # as Ctrl-C
        for child, _ in running.values():
            child.join()


def _last_line(cell: Cell) -> str:
    printed = cell.log.read_text(errors="replace") if cell.log.is_file() else ""
    return " ".join(printed.strip().splitlines()[-1:])


def _import_once(jobs: int) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // jobs)))  # runs share the cores
    if (backend := extension("backend", "local")) is not None:
        backend.load()


def _train(cell: Cell, then: Callable[[Cell], object]) -> None:
    from marl_verl.api import train
    from marl_verl.run.terminal import termination_as_interrupt

    shutil.rmtree(cell.folder, ignore_errors=True)  # of a run that was interrupted
    cell.folder.parent.mkdir(parents=True, exist_ok=True)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout = sys.stderr = cell.log.open("w", buffering=1, encoding="utf-8", errors="backslashreplace")
    os.dup2(sys.stdout.fileno(), 1)
    os.dup2(sys.stdout.fileno(), 2)

    def work() -> int:
        train(cell.arm.recipe, cell.overrides, plugins=cell.plugins)
        then(cell)
        return 0

    with termination_as_interrupt():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
        sys.exit(reported(work))


Of = Callable[[list[float]], float]

FORMS: Mapping[str, Of] = {
    "last": lambda values: values[-1],
    "mean": statistics.fmean,
    "max": max,
    "gain": lambda values: values[-1] - values[0],
    "area": lambda values: statistics.fmean(values[1:]),
}
"""What a metric's values over the steps become; "area" leaves out the first, the value before training."""


def curve(run: Run, metric: str) -> dict[float, float]:
    """Step -> value of a metric."""
    return {record["step"]: float(record[metric]) for record in run.metrics if metric in record}


def column(run: Run, metric: str) -> list[float]:
    """The values of a metric over the steps. MarlError if no record has it."""
    if values := [*curve(run, metric).values()]:
        return values
    names = {name for record in run.metrics for name in record}
    raise MarlError(f"run '{run.folder}': {unknown('metric', metric, names)}")


def parsed_measure(measure: str) -> tuple[Of, str]:
    """(form, metric) of "METRIC", its last value, or "FORM:METRIC". MarlError for an unknown form."""
    form, colon, metric = measure.partition(":")
    if not colon:
        return FORMS["last"], measure
    check_known("form of a measure", form, FORMS)
    return FORMS[form], metric


def measured(run: Run, measure: str) -> float:
    form, metric = parsed_measure(measure)
    return form(column(run, metric))
