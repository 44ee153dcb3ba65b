"""The registered parts of this distribution, all lazy: listing plugins imports none of them."""

from marl_verl.plugins import Registry, hookimpl


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.task("at-plan-path", "marl_verl_games.plan_path:PlanPath")
    registry.task("at-plan-path-tiny", "marl_verl_games.plan_path:TinyPlanPath")
    registry.task("at-final-answers", "marl_verl_math.tasks:MathTasks")
    registry.workflow("at-planner-executor", "marl_verl_games.tiny_workflows:PlannerExecutor")
    registry.workflow("at-one-walker", "marl_verl_games.tiny_workflows:OneWalker")
    registry.workflow("at-tool-caller-planner", "marl_verl_at_grpo.chat_workflows:ToolCallerPlanner")
    registry.workflow("at-one-chat-walker", "marl_verl_at_grpo.chat_workflows:OneChatWalker")
    registry.workflow("at-tool-user-reasoner", "marl_verl_math.tool_user:ToolUserReasoner")
    registry.workflow("at-one-reasoner", "marl_verl_math.tool_user:OneReasoner")
    registry.reward("at-plan-path", "marl_verl_games.plan_path_rewards:at_plan_path")
    registry.reward("at-bee-line", "marl_verl_games.plan_path_rewards:at_bee_line")
    registry.reward("at-bee-line-paid", "marl_verl_games.plan_path_rewards:at_bee_line_paid")
    registry.reward("at-own-answer", "marl_verl_math.tool_user:own_answer")
    registry.sampler("greedy-tree", "marl_verl_at_grpo.greedy_tree:GreedyTree")
    registry.algorithm("at-grpo", "marl_verl_at_grpo.algorithm:AT_GRPO")
    registry.algorithm("at-grpo-sessions", "marl_verl_at_grpo.algorithm:AT_GRPO_SESSIONS")
