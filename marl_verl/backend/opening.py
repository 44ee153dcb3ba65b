"""Open the backend of a run."""

import errno
import importlib
import re
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from omegaconf import OmegaConf

from marl_verl.config.stored import team_of
from marl_verl.errors import MarlError, format_error
from marl_verl.events import Phases, emit
from marl_verl.team import Endpoint

if TYPE_CHECKING:
    from marl_verl.backend.policies import Policies
    from marl_verl.backend.protocol import RowStore


@dataclass(frozen=True)
class Backend:
    """A backend that has started: its policies and critics, its rollouts, the store of rows."""

    policies: "Policies"
    rollouts: Any  # `Rollouts`; of verl also a `Stream`
    store: "RowStore"


@dataclass(frozen=True)
class Host:
    """The process of the trainer: how to end it at once with an exit code, and how a user continues afterwards."""

    leave: Callable[[int], NoReturn]
    advice: Callable[[], str]


def opened(config: Any, phase: Phases, host: Host) -> AbstractContextManager[Backend]:
    """The backend of a run's resolved config, until the end of the block; `phase`: what the run is doing."""
    session = importlib.import_module(f"marl_verl.backend.{config.marl.run.get('backend') or 'verl'}.session")
    backend: AbstractContextManager[Backend] = session.opened(config, phase, host)
    return backend


def tracking_of(config: Any) -> Any:
    """verl's adapter of all trackers of a run (`trainer.logger`), opened."""
    from verl.utils.tracking import Tracking

    names = {"project_name": config.trainer.project_name, "experiment_name": config.trainer.experiment_name}
    content = OmegaConf.to_container(config, resolve=True)
    with redirect_stdout(sys.stderr):  # the log
        return Tracking(**names, default_backend=config.trainer.logger, config=content)


def endpoints(config: Any) -> dict[str, Endpoint]:
    """Policy -> its external endpoint."""
    return {name: policy.endpoint for name, policy in team_of(config).policies.items() if policy.endpoint is not None}


OUT_OF_MEMORY = (
    "out of memory, killed by Ray; lower actor.ppo_max_token_len_per_gpu, "
    "rollout.engine_kwargs.vllm.kv_cache_memory_bytes (servers on a CPU) or data.train_batch_size, or let agents share "
    "a policy"
)


def reported(error: Exception) -> int:
    """Send an error to the command line and write its traceback to the log. Returns the exit code."""
    expected = isinstance(error, MarlError)
    emit("error", message=str(error) if expected else one_line(error), expected=expected)
    traceback.print_exc()
    return 2 if expected else 1


def one_line(error: BaseException) -> str:
    """One-line message for an unexpected error. The last line of Ray's message is the error in the other process."""
    kinds = {kind.__name__ for kind in type(error).__mro__ if kind.__module__.startswith("ray.")}  # without an import
    if "OutOfMemoryError" in kinds:
        return f"a Ray process died: {OUT_OF_MEMORY}"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        free = "Free some space, or lower marl.checkpoint.keep, marl.run.journal_tasks or marl.run.keep_rows"
        return f"{format_error(error)}: the disk or a quota is full. {free}"
    if "The current node timed out during startup" in str(error):  # of `ray.init`
        return "Ray did not start within 30 s: the machine is too busy. End other programs and start the run again"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "RayActorError" in kinds and not getattr(error, "actor_init_failed", False):
        details = dict(re.findall(r"^\s*(class_name|pid): (\S+)$", str(error), flags=re.MULTILINE))
        which = f" ({details.get('class_name', 'unknown')}, process {details['pid']})" if "pid" in details else ""
        return f"a Ray actor{which} died: killed or out of memory"
    return f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"
