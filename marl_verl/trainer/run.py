"""The trainer of a run directory: opens its backend, and trains.

For `verl` it is a process of its own, started by the command line as `python -m marl_verl.trainer.run RUN_DIRECTORY`;
its output is written to train.log.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_verl import plugins
from marl_verl.backend.opening import Host, endpoints, opened, reported
from marl_verl.backend.rollout.endpoint import reach
from marl_verl.config.stored import read_config
from marl_verl.events import Phases, emit
from marl_verl.plugins import one_file
from marl_verl.run.parent import Parent, how_to_continue
from marl_verl.run.trackers import tracked
from marl_verl.trainer.report import write_summary

if TYPE_CHECKING:
    from marl_verl.trainer.loop import Trainer


def main(folder: Path, work: Callable[[Path], None] | None = None) -> int:
    """Run `work` (default: `train`) on a run directory; end when the parent process ends.

    Returns the exit code: 0; 2 for a user error (MarlError), 1 for any other error, 130 after Ctrl-C.
    """
    parent = Parent()
    parent.follow()
    try:
        (work or train)(folder)
    except KeyboardInterrupt:
        emit("interrupted")
        return 130
    except Exception as error:  # noqa: BLE001 - the process ends: traceback to the log, message to the user
        return reported(error)
    finally:
        if parent.gone():
            parent.leave(1)
    return 0


def train(folder: Path) -> None:
    with session(folder) as trainer, tracked(trainer):
        emit("phase", name="first validation")
        trainer.fit()
        emit("finished", summary=write_summary(trainer))


@contextmanager
def session(folder: Path) -> "Iterator[Trainer]":
    """The trainer of a run directory, ready to fit; its backend is closed at the end of the block."""
    config: Any = read_config(folder / "config.yaml")
    plugins.use_files(one_file.files_of_run(folder))
    for name, endpoint in endpoints(config).items():
        reach(name, endpoint)
    phase, host = Phases(), Host(Parent().leave, partial(how_to_continue, folder))
    with opened(config, phase, host) as backend:
        from marl_verl.trainer.loop import Trainer  # with torch, which is imported while Ray starts

        trainer = Trainer(config, backend, phase)
        with phase("starting"):
            trainer.start()
        yield trainer


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
