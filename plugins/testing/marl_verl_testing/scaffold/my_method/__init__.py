"""A plugin of marl-verl. All parts are registered lazily: listing plugins imports only this file."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    """Register each part under the name that recipes use."""
    registry.task("my-method-numbers", "my_method.team:Numbers")
    registry.workflow("my-method-call-out", "my_method.team:CallOut")
    registry.reward("my-method-digits", "my_method.team:digits_right")
    registry.sampler("my-method-saving", "my_method.method:Saving")
    registry.algorithm("my-method", "my_method.method:ALGORITHM")
