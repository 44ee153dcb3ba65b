"""Questions answered by teams of agents that search."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.task("search", "marl_verl_search.tasks:SearchTasks")
    registry.workflow("search-routed", "marl_verl_search.routed:SearchTeam")
    registry.workflow("search-alone", "marl_verl_search.routed:SearchAlone")
    registry.workflow("search-planner", "marl_verl_search.planner:PlannerAndSearchers")
    registry.reward("search-verdict", "marl_verl_search.routed:verdict_right")
    registry.reward("search-hit", "marl_verl_search.routed:search_hit")
