"""The built-in parts, registered lazily through the same hook as those of plugins."""

from marl_verl.plugins.registry import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.workflow("single", "marl_verl.episode.workflow:Single")
    registry.reward("valid-answer", "marl_verl.algo.rewards:valid_answer")
    registry.reward("legal-move", "marl_verl.algo.rewards:legal_move")
    registry.reward("returned", "marl_verl.algo.rewards:returned")
    registry.sampler("independent", "marl_verl.algo.sampling.sampler:Independent")
    registry.loss("verl", "marl_verl.algo.algorithms.losses:VERL")
    registry.loss("ppo-clip", "marl_verl.algo.algorithms.losses:PPO_CLIP")
    registry.loss("ppo-clip-tis", "marl_verl.algo.algorithms.losses:PPO_CLIP_TIS")
    registry.loss("gspo", "marl_verl.algo.algorithms.losses:GSPO")
    registry.loss("gspo-tis", "marl_verl.algo.algorithms.losses:GSPO_TIS")
    registry.loss("reinforce", "marl_verl.algo.algorithms.losses:REINFORCE")
    registry.algorithm("grpo", "marl_verl.algo.algorithms.presets:GRPO")
