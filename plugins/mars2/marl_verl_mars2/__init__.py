"""MARS2 and MARS2+: several models search one tree per task."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.task("symbol-tests", "marl_verl_mars2.symbols:SymbolTests")
    registry.workflow("refine-symbols", "marl_verl_mars2.symbols:RefineSymbols")
    registry.sampler("tree-search", "marl_verl_mars2.tree_search:TreeSearch")
    registry.algorithm("mars2", "marl_verl_mars2.algorithm:MARS2")
    registry.algorithm("mars2-plus", "marl_verl_mars2.algorithm:MARS2_PLUS")
