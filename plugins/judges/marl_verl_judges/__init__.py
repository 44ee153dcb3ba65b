"""Judges: agents that score the acts of the other agents of their team."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.workflow("judged", "marl_verl_judges.judged:Judged")
    registry.reward("judge-score", "marl_verl_judges.rewards:judge_score")
    registry.reward("judge-calibration", "marl_verl_judges.rewards:judge_calibration")
