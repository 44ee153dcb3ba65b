"""What this distribution registers. Everything is lazy: listing plugins imports none of it."""

from __future__ import annotations

from marl_verl.hookspecs import Register, hookimpl


@hookimpl
def marl_register_mixes(register: Register) -> None:
    register("penalty", "marl_verl_dr_mas.algorithm:PenaltyMix")


@hookimpl
def marl_register_metrics(register: Register) -> None:
    register("amplification", "marl_verl_dr_mas.amplification:Amplification")


@hookimpl
def marl_register_algorithms(register: Register) -> None:
    register("dr-mas", "marl_verl_dr_mas.algorithm:DR_MAS")
