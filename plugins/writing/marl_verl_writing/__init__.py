"""Writing tasks for teams of agents: summaries and related pairs of texts."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.task("joint-writing", "marl_verl_writing.two_writers:JointWriting")
    registry.task("word-writing", "marl_verl_writing.two_writers:WordWriting")
    registry.workflow("two-writers", "marl_verl_writing.two_writers:TwoWriters")
    registry.workflow("word-writing", "marl_verl_writing.two_writers:WordWriters")
