"""The names of this distribution."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.algorithm("grpo-trajectory-mean", "marl_verl_baselines.presets:GRPO_TRAJECTORY_MEAN")
    registry.algorithm("reinforce++", "marl_verl_baselines.presets:REINFORCE_PP")
    registry.algorithm("gigpo", "marl_verl_baselines.presets:GIGPO")
    registry.algorithm("remax", "marl_verl_baselines.presets:REMAX")
    registry.algorithm("gdpo", "marl_verl_baselines.presets:GDPO")
    registry.algorithm("ippo", "marl_verl_baselines.presets:IPPO")
    registry.algorithm("mappo", "marl_verl_baselines.presets:MAPPO")
    registry.sampler("greedy-baseline", "marl_verl_baselines.samplers:GreedyBaseline")
    registry.sampler("best-of", "marl_verl_baselines.samplers:BestOf")
