"""Evaluation of a trained team on held-out tasks: choice of weights, scores and confidence intervals."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.command("eval", "marl_verl_evaluation.command", "evaluate a trained team on held-out tasks")
