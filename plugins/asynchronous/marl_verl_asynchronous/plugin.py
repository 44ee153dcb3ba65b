"""This distribution registers no part by name: the schedule is `marl.schedule.mode=async`, by its entry point."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    """Nothing; the hook lets a run store the version."""
