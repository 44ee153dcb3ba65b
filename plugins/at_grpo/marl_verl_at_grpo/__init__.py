"""AT-GRPO: candidates for one act are compared, and the best is the next state."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.reward("at-plan-path", "marl_verl_games.tiny_plan_path:at_plan_path")
    registry.reward("at-bee-line", "marl_verl_games.tiny_plan_path:at_bee_line")
    registry.reward("at-bee-line-paid", "marl_verl_games.tiny_plan_path:at_bee_line_paid")
    registry.sampler("greedy-tree", "marl_verl_at_grpo.greedy_tree:GreedyTree")
    registry.algorithm("at-grpo", "marl_verl_at_grpo.algorithm:AT_GRPO")
    registry.algorithm("at-grpo-sessions", "marl_verl_at_grpo.algorithm:AT_GRPO_SESSIONS")
