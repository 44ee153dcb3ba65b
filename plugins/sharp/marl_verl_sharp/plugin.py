"""What this distribution registers. Everything is lazy: listing plugins imports none of it."""

from __future__ import annotations

from marl_verl.hookspecs import Register, hookimpl


@hookimpl
def marl_register_credits(register: Register) -> None:
    register("counterfactual", "marl_verl_sharp.counterfactual:Counterfactual")
    register("shapley", "marl_verl_sharp.sampled_shapley:SampledShapley")


@hookimpl
def marl_register_mixes(register: Register) -> None:
    register("sharp", "marl_verl_sharp.algorithm:SharpMix")


@hookimpl
def marl_register_algorithms(register: Register) -> None:
    register("sharp", "marl_verl_sharp.algorithm:SHARP")
