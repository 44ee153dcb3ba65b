"""The registered parts of this distribution, all lazy: listing plugins imports none of them."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.task("three-ledgers", "marl_verl_sharp.ledgers:ThreeLedgers")
    registry.task("multi-hop-paragraphs", "marl_verl_search.tasks:SearchTasks")
    registry.workflow("three-ledgers", "marl_verl_sharp.ledgers:PlannerAndWorkers")
    registry.workflow("multi-hop-paragraphs", "marl_verl_search.planner:PlannerAndSearchers")
    registry.reward("sharp-format", "marl_verl_sharp.algorithm:sharp_format")
    registry.algorithm("sharp", "marl_verl_sharp.algorithm:SHARP")
