"""The runtime of a policy; this base is for an external endpoint or a script, which starts and syncs nothing."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from marl_verl.config.policy_models import endpoint_key
from marl_verl.team import PolicyConfig


class Runtime:
    """What a run has of a policy."""

    def __init__(self, policy: PolicyConfig) -> None:
        self.policy, self.name = policy, policy.name
        self.seconds: dict[str, float] = {}  # part -> its start-up time

    def start(self) -> None:
        """Start workers and servers. Endpoints are checked before a run starts anything (`trainer/run.py`)."""

    def client(self) -> Any:
        """What a rollout worker needs to act: a server (`rollout/client.py`), or the key of an endpoint, which is not
        a variable of a runtime environment: Ray would show it."""
        return endpoint_key(self.name, self.policy.endpoint) if self.policy.endpoint is not None else None

    def sleep(self) -> None:
        """Free the memory of sampling where training needs it."""

    def sync(self, version: int) -> None:
        """Act with the newest weights; every action reports `version` from now on."""


class TrainingWorkers:
    """Training workers with one rank, of this object alone; a backend overrides what is different there."""

    workers: Any
    lock: AbstractContextManager[Any] = nullcontext()
    """Held while the workers belong to this policy or critic: in a pool they may take turns."""

    @property
    def data_parallel_size(self) -> int:
        """Number of data-parallel ranks; each processes a part of the rows."""
        return 1

    def turn(self) -> AbstractContextManager[Any]:
        """The time in which the training workers belong to this policy or critic."""
        return self.lock

    def save(self, folder: Path, step: int) -> None:
        """Write model, optimiser and learning-rate schedule below `folder`; for a policy a Hugging Face folder, too."""
        with self.turn():
            self.workers.save_checkpoint(str(folder), None, step, max_ckpt_to_keep=None)

    def load(self, folder: Path) -> None:
        """Load the files that `save` wrote."""
        with self.turn():
            self.workers.load_checkpoint(local_path=str(folder), del_local_after_load=False)
