"""Open the backend of a run."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from omegaconf import OmegaConf

from marl_verl.config.stored import team_of
from marl_verl.events import Phases
from marl_verl.team import Endpoint

if TYPE_CHECKING:  # verl is imported while Ray starts
    from marl_verl.backend.policies import Policies
    from marl_verl.backend.protocol import RowStore


@dataclass(frozen=True)
class Backend:
    """A backend that has started: its policies and critics, its rollouts, the store of rows."""

    policies: Policies
    rollouts: Any  # `Rollouts`; of verl also a `Stream`
    store: RowStore


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
    return Tracking(**names, default_backend=config.trainer.logger, config=content)


def endpoints(config: Any) -> dict[str, Endpoint]:
    """Policy -> its external endpoint."""
    return {name: policy.endpoint for name, policy in team_of(config).policies.items() if policy.endpoint is not None}
