"""What this distribution registers. Everything is lazy: listing plugins imports none of it."""

from __future__ import annotations

from marl_verl.hookspecs import Register, hookimpl


@hookimpl
def marl_register_tasks(register: Register) -> None:
    register("symbol-tests", "marl_verl_mars2.symbols:SymbolTests")
    register("code-with-tests", "marl_verl_mars2.code_tests:CodeWithTests")


@hookimpl
def marl_register_workflows(register: Register) -> None:
    register("refine-symbols", "marl_verl_mars2.refine:RefineSymbols")
    register("refine-code", "marl_verl_mars2.refine_code:RefineCode")


@hookimpl
def marl_register_metrics(register: Register) -> None:
    register("semantic-diversity", "marl_verl_mars2.metrics:SemanticDiversity")
    register("algorithmic-diversity", "marl_verl_mars2.metrics:AlgorithmicDiversity")
    register("style-diversity", "marl_verl_mars2.metrics:StyleDiversity")
    register("refinement", "marl_verl_mars2.metrics:Refinement")


@hookimpl
def marl_register_samplers(register: Register) -> None:
    register("tree-search", "marl_verl_mars2.tree_search:TreeSearch")


@hookimpl
def marl_register_returns(register: Register) -> None:
    register("shaped", "marl_verl_mars2.algorithm:Shaped")


@hookimpl
def marl_register_algorithms(register: Register) -> None:
    register("mars2", "marl_verl_mars2.algorithm:MARS2")
    register("mars2-plus", "marl_verl_mars2.algorithm:MARS2_PLUS")
