"""Distillation: a single agent learns what a team does, by imitation and then by reward."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.command("distil", "marl_verl_distil.distil", "let a single agent learn what the team of a run does")
    registry.workflow("after-reasoning", "marl_verl_distil.imitation:AfterReasoning")
    registry.sampler("demonstrations", "marl_verl_distil.imitation:Demonstrations")
    registry.loss("imitation", "marl_verl_distil.imitation:LOSS")
    registry.algorithm("imitation", "marl_verl_distil.imitation:IMITATION")
