"""HACPO: policies of different models learn from each other's rollouts."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.algorithm("hacpo", "marl_verl_hacpo.algorithm:HACPO")
    registry.sampler("shared-rollouts", "marl_verl_hacpo.rollouts:SharedRollouts")
    registry.loss("hacpo", "marl_verl_hacpo.loss:HACPO")
