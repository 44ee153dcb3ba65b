"""The command of this distribution."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    help_text = "run a program on tests in the sandbox for model-written code"
    registry.command("sandbox", "marl_verl_sandbox.command", help_text)
