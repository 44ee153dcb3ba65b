"""Snapshots of a policy, with which opponents act: RUN/opponents/POLICY/step_N, complete or absent.

model/   the model in Hugging Face's format, if all weights are trained
saved/   what verl saves of an adapter, which is merged into the base model each time that servers load it

Step 0 is the policy before training: the run's model, of which there is no copy. A checkpoint has, for each policy with
opponents, opponents/POLICY.json: the snapshots of its pool and the results against them. A snapshot stays as long as
the pool or a complete checkpoint names it, so that every checkpoint can be resumed and evaluated.
"""

import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from marl_verl.errors import MarlError, user_error
from marl_verl.files import read_json
from marl_verl.run.checkpoint import folders
from marl_verl.run.checkpoint.export import Source, export

FOLDER, MODEL, SAVED = "opponents", "model", "saved"
NOT_WEIGHTS = ("optim_*", "extra_state_*")
"""Files of a policy in a checkpoint that no server loads."""


@dataclass(frozen=True)
class Snapshots:
    """The snapshots of a policy in a run directory; `settings` is its `actor_rollout_ref.model`."""

    run: Path
    policy: str
    settings: dict[str, Any]

    @classmethod
    def of(cls, run: Path, config: DictConfig, policy: str) -> "Snapshots":
        """The snapshots of a policy of a run with this resolved config."""
        settings: Any = OmegaConf.to_container(config.policies[policy].actor_rollout_ref.model)
        return cls(run, policy, settings)

    @property
    def root(self) -> Path:
        return self.run / FOLDER / self.policy

    def write(self, step: int, save: Callable[[Path], None]) -> None:
        """Write the snapshot of a step; `save` writes the policy's part of a checkpoint."""
        self.root.mkdir(parents=True, exist_ok=True)
        folders.tidy(self.root)
        writing = self.root / f"{folders.WRITING}step_{step}"
        save(writing / SAVED)
        source = Source(self.policy, step, writing / SAVED, self.settings)
        if source.lora is None:
            export(source, writing / MODEL)
            shutil.rmtree(writing / SAVED)
        for pattern in NOT_WEIGHTS:
            for path in (writing / SAVED).glob(pattern):
                path.unlink()
        folders.flush(writing)
        folders.commit(writing, self.folder(step))

    def folder(self, step: int) -> Path:
        return self.root / f"step_{step}"

    def source(self, step: int) -> Source:
        """The snapshot of an adapter, to export."""
        return Source(self.policy, step, self.folder(step) / SAVED, self.settings)

    def model(self, step: int) -> str | None:
        """The folder or hub name of the model of a snapshot; None for an adapter, which has to be merged first."""
        ready = self.folder(step) / MODEL
        return str(self.settings["path"]) if step == 0 else str(ready) if ready.is_dir() else None

    @contextmanager
    def loadable(self, step: int) -> Iterator[str]:
        """A model that servers can load within the context."""
        if (ready := self.model(step)) is not None:
            yield ready
            return
        merged = self.root / f"{folders.WRITING}merged"
        shutil.rmtree(merged, ignore_errors=True)  # of a killed process
        export(self.source(step), merged, merge=True)
        try:
            yield str(merged)
        finally:
            shutil.rmtree(merged)

    def check(self, steps: Collection[int]) -> None:
        for step in steps:
            if step and not self.folder(step).is_dir():
                raise MarlError(f"snapshot '{self.folder(step)}' is missing: opponents of '{self.policy}' act with it")

    def discard(self, pool: Collection[int]) -> None:
        """Remove the snapshots that neither the pool nor a complete checkpoint names."""
        needed = {*pool}
        for checkpoint in folders.complete(self.run / "checkpoints"):
            needed |= {*map(int, read(checkpoint, self.policy))}
        for path in self.root.glob("step_*"):
            if int(path.name.removeprefix("step_")) not in needed:
                folders.discard(path)


def check(run: Path, checkpoint: Path, policies: Iterable[str]) -> None:
    for policy in policies:
        Snapshots(run, policy, {}).check([int(step) for step in read(checkpoint, policy)])


def read(checkpoint: Path, policy: str) -> dict[str, Any]:
    """Step -> results of the snapshots that a checkpoint names, oldest first; step is a text."""
    path = checkpoint / FOLDER / f"{policy}.json"
    with user_error(f"checkpoint '{checkpoint}' is damaged: '{path}' cannot be read", KeyError, TypeError, ValueError):
        return dict(read_json(path)["snapshots"])
