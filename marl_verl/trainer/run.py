"""The trainer of a run directory: opens its backend, trains, and writes summary.json.

For `verl` it is a process of its own, started by the command line as `python -m marl_verl.trainer.run RUN_DIRECTORY`;
its output is written to train.log.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_verl import plugins
from marl_verl.backend.protocol import Host, endpoints, opened, reported
from marl_verl.config.stored import read_config
from marl_verl.events import Phases, emit
from marl_verl.extensions import required
from marl_verl.files import read_json, write_json
from marl_verl.plugins import one_file
from marl_verl.run.checkpoint.folders import complete
from marl_verl.run.cleanup import Parent
from marl_verl.run.run_dir import how_to_continue
from marl_verl.run.trackers import tracked
from marl_verl.tasks.base import wilson

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
        emit("phase", name="first validation" if trainer.config.trainer.val_before_train else "first step")
        trainer.fit()
        emit("finished", summary=write_summary(trainer))


@contextmanager
def session(folder: Path) -> "Iterator[Trainer]":
    """The trainer of a run directory, ready to fit; its backend is closed at the end of the block."""
    config: Any = read_config(folder / "config.yaml")
    plugins.use_files(one_file.files_of_run(folder))
    for name, endpoint in endpoints(config).items():
        required("client", "endpoint", f"endpoint of policy '{name}'", "endpoints").reach(name, endpoint)
    phase, host = Phases(), Host(Parent().leave, partial(how_to_continue, folder))
    with opened(config, phase, host) as backend:
        from marl_verl.trainer.loop import Trainer  # with torch, which is imported while Ray starts

        trainer = Trainer(config, backend, phase)
        with phase("starting"):
            trainer.start()
        yield trainer


def write_summary(trainer: "Trainer") -> dict[str, Any]:
    """Write summary.json to the run directory and return its content."""
    folder = trainer.run_dir.folder
    lines = trainer.run_dir.read_metrics()
    steps = [line for line in lines if "train/success" in line]
    validations = {line["step"]: line for line in lines if "validation/success" in line}
    last = max(validations, default=0)
    tasks, saved = len(trainer.data.held_out), complete(folder / "checkpoints")
    timing = read_json(folder / "timing.json") if (folder / "timing.json").is_file() else {}
    durations = sorted(line["seconds/step"] for line in steps[1:] or steps)
    summary = {
        **_success(validations.get(0, {}), tasks, "before"),  # {}: trainer.val_before_train was off
        **_success(validations.get(last, {}) if last or not steps else {}, tasks, "after"),
        "eval_tasks": tasks,
        "steps": int(steps[-1]["step"]) if steps else 0,
        "seconds_total": time.time() - timing["begun"] if "begun" in timing else None,
        "seconds_to_first_step": timing.get("seconds_to_first_step"),
        "seconds_per_step": durations[len(durations) // 2] if durations else None,
        "policies": list(trainer.team.policies),
        "agents": list(trainer.team.agents),
        "checkpoint": str(saved[-1].relative_to(folder)) if saved else None,
    }
    write_json(folder / "summary.json", summary, default=float)
    return summary


def _success(validation: dict[str, Any], tasks: int, when: str) -> dict[str, Any]:
    """Team success in a validation and, under "answer", what the task set measures of answers in its greedy pass."""
    success, prefix = validation.get("validation/success"), "validation/answer/"
    measured = [name for name in validation if name.startswith(prefix) and not name.endswith("_sampled")]
    return {
        f"success_{when}": success,
        f"success_{when}_interval": None if success is None else wilson(success * tasks, tasks),
        f"success_{when}_sampled": validation.get("validation/success_sampled"),
        f"answer_{when}": {name.removeprefix(prefix): validation[name] for name in measured},
    }


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
