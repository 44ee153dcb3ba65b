"""SHARP: a planner and its workers, rewarded by broadcast, marginal credit and tool use."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.task("three-ledgers", "marl_verl_sharp.ledgers:ThreeLedgers")
    registry.workflow("three-ledgers", "marl_verl_sharp.ledgers:PlannerAndWorkers")
    registry.reward("sharp-format", "marl_verl.algo.rewards:legal_move")
    registry.algorithm("sharp", "marl_verl_sharp.algorithm:SHARP")
