"""What this distribution registers. Everything is lazy: listing plugins imports none of it."""

from __future__ import annotations

from marl_verl.hookspecs import Register, hookimpl


@hookimpl
def marl_register_samplers(register: Register) -> None:
    register("joint-tree", "marl_verl_magrpo.joint_tree:JointTree")


@hookimpl
def marl_register_advantages(register: Register) -> None:
    register("joint", "marl_verl_magrpo.algorithm:JointAdvantage")


@hookimpl
def marl_register_algorithms(register: Register) -> None:
    register("magrpo", "marl_verl_magrpo.algorithm:MAGRPO")
    register("magrpo-sessions", "marl_verl_magrpo.algorithm:MAGRPO_SESSIONS")
