"""The command of this distribution."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.command("new-plugin", "marl_verl_testing.new_plugin", "write the package of a new plugin")
