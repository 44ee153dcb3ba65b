"""Registers nothing: with it, a run stores the version and the content of this distribution."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    """A recipe names `opponent` in an agent's section, which is an entry point."""
