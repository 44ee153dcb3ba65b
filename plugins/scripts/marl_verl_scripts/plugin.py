"""The parts of this distribution. `main_ppo` and the key `marl.task.reward` are entry points."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.task("function-scored", "marl_verl_scripts.reward_function:FunctionScored")
    registry.task("verl", "marl_verl_scripts.verl_rows:VerlRows")
