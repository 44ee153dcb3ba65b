"""What this distribution registers. Everything is lazy: listing plugins imports none of it."""

from __future__ import annotations

from marl_verl.hookspecs import Register, hookimpl


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
