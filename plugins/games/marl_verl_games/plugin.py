"""The registered parts of this distribution, all lazy: listing plugins imports none of them."""

from __future__ import annotations

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.task("reasoning-gym", "marl_verl_games.reasoning_gym:ReasoningGym")
    registry.workflow("text-solver-verifier", "marl_verl_games.text_teams:TextSolverVerifier")
    registry.workflow("text-parallel", "marl_verl_games.text_teams:TextParallel")
    registry.workflow("text-pipeline", "marl_verl_games.text_teams:TextPipeline")
    registry.workflow("text-discussion", "marl_verl_games.text_teams:TextDiscussion")
