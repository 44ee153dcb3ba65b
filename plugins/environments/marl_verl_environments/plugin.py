"""The registered parts of this distribution, all lazy: listing plugins imports none of them."""

from __future__ import annotations

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    """Nothing yet."""
