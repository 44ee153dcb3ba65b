"""Checkpoints of a whole team: all policies, the position in the data and the step, complete or not there at all."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from marl_verl.errors import MarlError

if TYPE_CHECKING:
    from marl_verl.trainer.team_trainer import TeamTrainer

TEAM_FILE = "team.json"


def save(trainer: TeamTrainer) -> None:
    """Write to a folder beside its final name and rename it when all of it is there.

    A kill at any moment leaves the last complete checkpoint loadable: an unfinished one keeps its temporary name.
    """
    import torch  # here, because the command line reads checkpoints too, and must be quick

    root = trainer.run_dir.checkpoints
    final = root / f"step_{trainer.global_steps}"
    writing = root / f".writing-step_{trainer.global_steps}"
    shutil.rmtree(writing, ignore_errors=True)
    writing.mkdir(parents=True)
    trainer._at_once(
        trainer.trained(), lambda runtime: runtime.save(writing / "policies" / runtime.name, trainer.global_steps)
    )
    torch.save(trainer.train_dataloader.state_dict(), writing / "data.pt")
    (writing / TEAM_FILE).write_text(json.dumps({"step": trainer.global_steps, **identity(trainer.config)}, indent=1))
    shutil.rmtree(final, ignore_errors=True)
    os.replace(writing, final)
    for old in complete(root)[: -int(trainer.config.marl.checkpoint.keep)]:
        shutil.rmtree(old)


def complete(root: Path) -> list[Path]:
    """The complete checkpoints below a folder, oldest first."""
    steps = {path: path.name.removeprefix("step_") for path in root.glob("step_*") if (path / TEAM_FILE).is_file()}
    return sorted((path for path, step in steps.items() if step.isdigit()), key=lambda path: int(steps[path]))


def read(folder: Path) -> dict[str, Any]:
    """The team file of a checkpoint: `step`, and what `identity` says. MarlError if it cannot be read."""
    try:
        team: dict[str, Any] = json.loads((folder / TEAM_FILE).read_text())
        team["step"] = int(team["step"])
    except (ValueError, TypeError, KeyError) as error:
        raise MarlError(f"checkpoint '{folder}' is damaged: {TEAM_FILE} cannot be read ({error})") from error
    return team


def identity(config: Any) -> dict[str, Any]:
    """What must not change between a run and its continuation."""
    marl: Any = OmegaConf.to_container(config.marl, resolve=True)
    return {
        "agents": {name: values["policy"] for name, values in marl["agents"].items()},
        "policies": sorted(marl["policies"]),
        "frozen": sorted(name for name, values in marl["policies"].items() if (values or {}).get("frozen")),
        "slots": int(config.trainer.n_gpus_per_node) * int(config.trainer.nnodes),
        "task": marl["task"]["name"],
        "workflow": marl["workflow"]["name"],
        "algorithm": marl["algorithm"]["name"],
        "seed": marl["run"]["seed"],
    }


def load(trainer: TeamTrainer) -> int:
    """Load the newest complete checkpoint if the run is a continuation.

    Returns:
        The step it was taken at; 0 for a fresh run.

    Raises:
        MarlError: another team or algorithm than the checkpoint's.
    """
    import torch

    if trainer.config.trainer.resume_mode == "disable":
        return 0
    found = complete(trainer.run_dir.checkpoints)
    if not found:
        return 0
    newest = found[-1]
    saved = read(newest)
    check_identity(saved, identity(trainer.config), newest)
    trainer._at_once(trainer.trained(), lambda runtime: runtime.load(newest / "policies" / runtime.name))
    trainer.train_dataloader.load_state_dict(torch.load(newest / "data.pt", weights_only=False))
    return int(saved["step"])


def check_identity(saved: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
    """Raise MarlError naming what differs between a checkpoint and the config that wants to continue it."""
    for name, value in now.items():
        if saved.get(name) != value:
            raise MarlError(
                f"checkpoint '{folder}' was made with {name}={saved.get(name)!r}, the config says {value!r}: "
                "resume with the run's own config, or start a new run"
            )
