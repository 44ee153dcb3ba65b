"""The registered parts of this distribution, all lazy: listing plugins imports none of them."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.algorithm("dr-mas", "marl_verl_dr_mas.algorithm:DR_MAS")
