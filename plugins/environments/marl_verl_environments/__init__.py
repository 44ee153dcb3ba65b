"""Environments of other packages as task sets."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.task("textarena", "marl_verl_environments.textarena:TextArenaTasks")
    registry.workflow("textarena", "marl_verl_environments.textarena:TextArena")
    registry.task("pettingzoo", "marl_verl_environments.pettingzoo:PettingZooTasks")
    registry.workflow("pettingzoo", "marl_verl_environments.pettingzoo:PettingZoo")
    registry.task("verifiers", "marl_verl_environments.verifiers:VerifiersTasks")
    registry.workflow("verifiers", "marl_verl_environments.verifiers:Verifiers")
    registry.reward("seat-reward", "marl_verl_environments.verifiers:seat_reward")
    registry.reward("player-outcome", "marl_verl_environments.seats:player_outcome")
    registry.reward("player-outcome-legal", "marl_verl_environments.seats:player_outcome_legal")
