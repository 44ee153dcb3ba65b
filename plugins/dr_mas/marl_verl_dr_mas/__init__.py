"""Dr. MAS: advantages are normalised per agent."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.algorithm("dr-mas", "marl_verl_dr_mas.algorithm:DR_MAS")
