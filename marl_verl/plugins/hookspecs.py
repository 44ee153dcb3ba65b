"""The hooks a plugin can implement: one that registers its parts by name, two that observe a run.

A plugin is a module, a class (instantiated without arguments) or an instance whose functions carry `@hookimpl`. A
distribution offers it under the entry-point group `marl_verl`::

    [project.entry-points.marl_verl]
    my-plugin = "my_package.plugin"

docs/plugins.md has an example of each hook and of each method of the registry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from marl_verl.episode import Episode
    from marl_verl.plugins.registry import Registry

__all__ = ["hookimpl"]

PROJECT = "marl_verl"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def marl_register(registry: Registry) -> None:
    """Register parts by name: `registry.workflow("debate", Debate)`, and so on for each kind of part.

    Called once in every process of a run, before anything else.
    """


@hookspec
def marl_episode_finished(episode: Episode) -> None:
    """Observe episodes: called in the rollout worker's process when an episode has been sampled and scored."""


@hookspec
def marl_step_finished(step: int, metrics: Mapping[str, Any]) -> None:
    """Observe training: called in the driver's process after each step, with the step's metrics."""
