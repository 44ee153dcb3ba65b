"""The registered parts of this distribution, all lazy: listing plugins imports none of them."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.task("dr-mas-math", "marl_verl_math.tasks:MathTasks")
    registry.task("dr-mas-search", "marl_verl_search.tasks:SearchTasks")
    registry.workflow("dr-mas-math", "marl_verl_math.solver_verifier:SolverVerifier")
    registry.workflow("dr-mas-search", "marl_verl_search.routed:SearchTeam")
    registry.workflow("dr-mas-search-alone", "marl_verl_search.routed:SearchAlone")
    registry.algorithm("dr-mas", "marl_verl_dr_mas.algorithm:DR_MAS")
