"""What this distribution registers. Everything is lazy: listing plugins imports none of it."""

from __future__ import annotations

from marl_verl.hookspecs import Register, hookimpl


@hookimpl
def marl_register_tasks(register: Register) -> None:
    register("rendezvous", "marl_verl_magrpo.rendezvous:Rendezvous")
    register("joint-writing", "marl_verl_magrpo.writing:JointWriting")
    register("joint-code", "marl_verl_magrpo.joint_code:JointCode")


@hookimpl
def marl_register_workflows(register: Register) -> None:
    register("rendezvous", "marl_verl_magrpo.rendezvous:Meet")
    register("two-writers", "marl_verl_magrpo.writing:TwoWriters")
    register("two-coders", "marl_verl_magrpo.joint_code:TwoCoders")


@hookimpl
def marl_register_samplers(register: Register) -> None:
    register("joint-tree", "marl_verl_magrpo.joint_tree:JointTree")


@hookimpl
def marl_register_advantages(register: Register) -> None:
    register("joint", "marl_verl_magrpo.algorithm:JointAdvantage")


@hookimpl
def marl_register_metrics(register: Register) -> None:
    register("joint-turns", "marl_verl_magrpo.joint_turns:JointTurns")


@hookimpl
def marl_register_algorithms(register: Register) -> None:
    register("magrpo", "marl_verl_magrpo.algorithm:MAGRPO")
    register("magrpo-sessions", "marl_verl_magrpo.algorithm:MAGRPO_SESSIONS")
