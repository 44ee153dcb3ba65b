"""The overrides of a verl script, trained as a team: `python -m marl_verl.main_ppo key=value ...`."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.task("function-scored", "marl_verl_scripts.reward_function:FunctionScored")
    registry.task("verl", "marl_verl_scripts.verl_rows:VerlRows")
