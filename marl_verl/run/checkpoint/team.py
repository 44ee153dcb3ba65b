"""Checkpoints of a whole team: all state that is needed to resume a run.

policies/NAME/   of each trained policy: verl's sharded model, optimiser, learning-rate schedule and random state
critics/NAME/    the same for each critic
curriculum/      success rates of the tasks, with a curriculum
advantage/       what an advantage remembers of earlier steps, if it does
NAME/            of other parts: what they save themselves
data.pt          the position in the data
random.pt        the driver's random state: Python's, NumPy's, torch's
schedule.pt      the state of the schedule, if it has any
team.json        the step, the resume fingerprint (`fingerprint`), the plugins, and every file with its size
"""

import random
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from omegaconf import DictConfig

from marl_verl import plugins
from marl_verl.errors import MarlError
from marl_verl.files import write_json
from marl_verl.run.checkpoint import folders, pickles
from marl_verl.run.checkpoint.fingerprint import resume_fingerprint, used_plugins


class Checkpointable(Protocol):
    """A policy or a critic, which is saved in a separate folder."""

    def save(self, folder: Path, step: int) -> None: ...
    def load(self, folder: Path) -> None: ...


class Checkpoints:
    """Writes and loads the checkpoints of a run. `parts`: path in a checkpoint -> the policy or critic saved there;
    `together`: how calls to different parts run (`Policies.together`)."""

    def __init__(
        self,
        config: DictConfig,
        run: Path,
        parts: Mapping[str, Checkpointable],
        data: Any,
        schedule: Any,
        together: Callable[[Mapping[str, Callable[[], None]]], Any],
    ) -> None:
        self._config, self._run, self._root = config, run, run / "checkpoints"
        self._parts, self._data, self._schedule, self._together = parts, data, schedule, together

    def write(self, step: int) -> None:
        """Write to a temporary folder, and flush it to the disk. MarlError if the disk is full."""
        self._root.mkdir(parents=True, exist_ok=True)
        folders.tidy(self._root)
        writing = self._writing(step)
        try:
            self._write(writing, step)
            folders.flush(writing)
        except Exception as error:
            if not folders.is_full(error, self._root):
                raise
            shutil.rmtree(writing, ignore_errors=True)
            saved = folders.complete(self._root)
            remedy = f"continue with marl-verl train --resume {self._run}" if saved else "start the run again"
            raise MarlError(
                f"no space left while saving step {step} in '{self._root}'. Free space and {remedy}"
            ) from error

    def commit(self, step: int) -> None:
        """Rename the checkpoint from `write`, if this step has one, to its final name and remove old checkpoints.

        Called after the step's metrics and validation are stored: a run that is killed earlier repeats the step.
        """
        if self._writing(step).is_dir():
            folders.commit(self._writing(step), self._root / f"step_{step}")
            for old in folders.complete(self._root)[: -int(self._config.marl.checkpoint.keep)]:
                folders.discard(old)

    def load(self) -> int:
        """Load the newest complete checkpoint if the run is resumed. Returns its step; 0 for a new run.

        That it is of this run has been checked before this process started (`run.prepare`).
        """
        import numpy as np
        import torch

        if self._config.trainer.resume_mode == "disable":
            return 0
        folders.tidy(self._root)
        saved = folders.complete(self._root)
        if not saved:
            return 0
        folder = folders.intact(saved[-1])
        self._together({path: partial(part.load, folder / path) for path, part in self._parts.items()})
        self._data.load_state_dict(pickles.load(folder / "data.pt"))
        state = pickles.load(folder / "random.pt")
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])
        torch.set_rng_state(state["torch"])
        schedule = folder / "schedule.pt"
        self._schedule.restore(pickles.load(schedule) if schedule.is_file() else None)
        return folders.step_of(folder)

    def _write(self, folder: Path, step: int) -> None:
        import numpy as np
        import torch  # not at the top, because the command line imports this module

        (folder / "policies").mkdir(parents=True)
        self._together({path: partial(part.save, folder / path, step) for path, part in self._parts.items()})
        torch.save(self._data.state_dict(), folder / "data.pt")
        state = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
        torch.save(state, folder / "random.pt")
        if (schedule := self._schedule.state()) is not None:
            torch.save(schedule, folder / "schedule.pt")
        write_json(folder / folders.TEAM_FILE, {**describe(self._config, step), "files": folders.manifest(folder)})

    def _writing(self, step: int) -> Path:
        return self._root / f"{folders.WRITING}step_{step}"


def describe(config: DictConfig, step: int) -> dict[str, Any]:
    """The content of a team file without the list of files, from the resolved config."""
    distributions = {"plugins": used_plugins(config), "loaded_plugins": plugins.load().fingerprint()}
    return {"step": step, "fingerprint": resume_fingerprint(config), **distributions}
