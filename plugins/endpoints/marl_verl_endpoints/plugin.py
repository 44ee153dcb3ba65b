"""Registers nothing: with it, a run stores the version and the content of this distribution."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    """`endpoint` is a key of a policy's section, by its entry point."""
