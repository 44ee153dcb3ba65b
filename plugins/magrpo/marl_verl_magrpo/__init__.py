"""MAGRPO: agents that act simultaneously for several turns, one joint reward, a joint tree."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.task("rendezvous", "marl_verl_magrpo.rendezvous:Rendezvous")
    registry.workflow("rendezvous", "marl_verl_magrpo.rendezvous:Meet")
    registry.sampler("joint-tree", "marl_verl_magrpo.joint_tree:JointTree")
    registry.algorithm("magrpo", "marl_verl_magrpo.algorithm:MAGRPO")
    registry.algorithm("magrpo-sessions", "marl_verl_magrpo.algorithm:MAGRPO_SESSIONS")
