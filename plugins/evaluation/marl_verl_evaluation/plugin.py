"""The command of this distribution."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.command("eval", "marl_verl_evaluation.command", "evaluate a trained team on held-out tasks")
