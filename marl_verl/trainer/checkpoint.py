"""Checkpoints of a whole team: what it takes to go on as if nothing had happened, complete or not there at all.

policies/NAME/   of each policy that learns: verl's sharded model, optimiser, schedule and random state
critics/NAME/    the same of each critic
data.pt          the position in the data
random.pt        the driver's random state: Python's, NumPy's, torch's
schedule.pt      what the schedule keeps from one step to the next, if anything
team.json        the step, whose run this is (`identity`), its plugins, and every file with its size
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from marl_verl import plugins
from marl_verl.errors import MarlError
from marl_verl.trainer import checkpoint_files as files
from marl_verl.trainer.checkpoint_files import TEAM_FILE, complete, read, step_of
from marl_verl.trainer.identity import check_same, identity, used_plugins

if TYPE_CHECKING:
    from marl_verl.trainer.team_trainer import TeamTrainer

__all__ = ["TEAM_FILE", "commit", "complete", "describe", "load", "newest", "read", "step_of", "write"]

FIRST = 4
"""A first checkpoint against the model on disk: weights, two moments of Adam, and the weights for others to load."""


def write(trainer: TeamTrainer) -> None:
    """Write to a folder beside its final name, and have all of it on the disk. `commit` gives it the name.

    A kill at any moment leaves the last complete checkpoint: the names in `checkpoint_files` say how.

    Raises:
        MarlError: there is not enough space, told before anything is written; or there was, and then it ran out.
    """
    step, root = trainer.global_steps, trainer.run_dir.checkpoints
    root.mkdir(parents=True, exist_ok=True)
    files.tidy(root)
    _check_space(trainer, root)
    writing = root / f"{files.WRITING}step_{step}"
    try:
        _write(trainer, writing)
        files.flush(writing)
    except Exception as error:
        if not files.is_full(error, root):
            raise
        shutil.rmtree(writing, ignore_errors=True)
        raise MarlError(
            f"no space left while saving step {step} in '{root}': {_last(root)}; free space{_go_on(trainer, root)}"
        ) from error


def commit(trainer: TeamTrainer) -> None:
    """Give what `write` has written in this step its name, and remove old checkpoints.

    Called when the metrics and the validation of the step are stored: a run that is killed before that takes the step
    again, and loses none of them.
    """
    root, name = trainer.run_dir.checkpoints, f"step_{trainer.global_steps}"
    writing = root / f"{files.WRITING}{name}"
    if not writing.is_dir():
        return  # no checkpoint in this step
    files.commit(writing, root / name)
    for old in complete(root)[: -int(trainer.config.marl.checkpoint.keep)]:
        files.discard(old)


def _write(trainer: TeamTrainer, folder: Path) -> None:
    import numpy as np
    import torch  # here, because the command line reads checkpoints too, and must be quick

    step = trainer.global_steps
    (folder / "policies").mkdir(parents=True)
    saving = [(runtime.save, folder / "policies" / runtime.name) for runtime in trainer.trained()]
    saving += [(critic.save, folder / "critics" / name) for name, critic in trainer.critics.items()]
    _at_once(partial(save, path, step) for save, path in saving)
    torch.save(trainer.train_dataloader.state_dict(), folder / "data.pt")
    state = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
    torch.save(state, folder / "random.pt")
    schedule = trainer.schedule.state()
    if schedule is not None:
        torch.save(schedule, folder / "schedule.pt")
    team = {**describe(trainer.config, step), "files": files.manifest(folder)}
    (folder / TEAM_FILE).write_text(json.dumps(team, indent=1) + "\n", encoding="utf-8")


def describe(config: DictConfig, step: int) -> dict[str, Any]:
    """What a team file says besides the list of files.

    Args:
        config: the run's, resolved.
    """
    return {
        "step": step,
        "identity": identity(config),
        "plugins": used_plugins(config),
        "loaded_plugins": plugins.load().fingerprint(),
    }


def _at_once(calls: Iterable[Callable[[], None]]) -> None:
    """Make calls at the same time and wait for all of them; the first error is raised."""
    waiting = list(calls)
    with ThreadPoolExecutor(max_workers=max(1, len(waiting))) as threads:
        for future in [threads.submit(call) for call in waiting]:
            future.result()


def _check_space(trainer: TeamTrainer, root: Path) -> None:
    """Whether the next checkpoint finds space beside those that are there: it is as large as the last one."""
    saved = complete(root)
    if saved:
        needed = files.size(saved[-1])
        why = f"as much as checkpoint '{saved[-1].name}' has"
    else:
        models = [Path(runtime.config.actor_rollout_ref.model.path) for runtime in _full(trainer)]
        held = sum(files.size(path, pattern) for path in models for pattern in ("*.safetensors", "*.bin"))
        needed = FIRST * held
        why = f"{FIRST} times the {_bytes(held)} of the models on disk, for weights, optimiser and a copy to load"
    free = shutil.disk_usage(root).free
    if free < needed:
        raise MarlError(
            f"not enough space to save step {trainer.global_steps} in '{root}': it takes {_bytes(needed)} ({why}), "
            f"{_bytes(free)} are free; {_last(root)}; free {_bytes(needed - free)}{_go_on(trainer, root)}"
        )


def _full(trainer: TeamTrainer) -> list[Any]:
    """The policies that learn and save all of their weights: an adapter is small."""
    return [runtime for runtime in trainer.trained() if not runtime.config.actor_rollout_ref.model.get("lora_rank")]


def _last(root: Path) -> str:
    saved = complete(root)
    return f"the last complete checkpoint is step {step_of(saved[-1])}" if saved else "there is no complete checkpoint"


def _go_on(trainer: TeamTrainer, root: Path) -> str:
    resume = f" and continue with marl-verl train --resume {trainer.run_dir.folder}"
    return resume if complete(root) else " and start the run again"


def _bytes(count: float) -> str:
    """A number of bytes in the unit that suits it."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def newest(run: Path) -> Path | None:
    """The newest complete checkpoint of a run directory, intact; None where there is none.

    Raises:
        MarlError: it is damaged (what is wrong, which one is intact, how to go on from that), or an older version's.
    """
    found = complete(run / "checkpoints")
    if not found:
        return None
    files.check_intact(found[-1], run)
    return found[-1]


def load(trainer: TeamTrainer) -> int:
    """Load the newest complete checkpoint if the run is a continuation.

    Returns:
        The step it was taken at; 0 for a fresh run.

    Raises:
        MarlError: it is damaged, or of another team, algorithm or set of plugins.
    """
    import numpy as np
    import torch

    if trainer.config.trainer.resume_mode == "disable":
        return 0
    root = trainer.run_dir.checkpoints
    if root.is_dir():
        files.tidy(root)
    folder = newest(trainer.run_dir.folder)
    if folder is None:
        return 0
    team = read(folder)
    check_same(team, trainer.config, folder)
    loading = [(runtime.load, folder / "policies" / runtime.name) for runtime in trainer.trained()]
    loading += [(critic.load, folder / "critics" / name) for name, critic in trainer.critics.items()]
    _at_once(partial(load, path) for load, path in loading)
    trainer.train_dataloader.load_state_dict(torch.load(folder / "data.pt", weights_only=False))
    state = torch.load(folder / "random.pt", weights_only=False)
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    schedule = folder / "schedule.pt"
    trainer.schedule.restore(torch.load(schedule, weights_only=False) if schedule.is_file() else None)
    return int(team["step"])
