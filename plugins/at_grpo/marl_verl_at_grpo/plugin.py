"""What this distribution registers. Everything is lazy: listing plugins imports none of it."""

from __future__ import annotations

from marl_verl.hookspecs import Register, hookimpl


@hookimpl
def marl_register_samplers(register: Register) -> None:
    register("greedy-tree", "marl_verl_at_grpo.greedy_tree:GreedyTree")


@hookimpl
def marl_register_mixes(register: Register) -> None:
    register("alpha", "marl_verl_at_grpo.algorithm:AlphaMix")


@hookimpl
def marl_register_algorithms(register: Register) -> None:
    register("at-grpo", "marl_verl_at_grpo.algorithm:AT_GRPO")
    register("at-grpo-sessions", "marl_verl_at_grpo.algorithm:AT_GRPO_SESSIONS")


@hookimpl
def marl_register_metrics(register: Register) -> None:
    register("at-turns", "marl_verl_at_grpo.metrics:Turns")
    register("at-chosen", "marl_verl_at_grpo.metrics:Chosen")


@hookimpl
def marl_register_tasks(register: Register) -> None:
    register("at-plan-path", "marl_verl_at_grpo.plan_path:PlanPath")
    register("at-plan-path-tiny", "marl_verl_at_grpo.plan_path:TinyPlanPath")
    register("at-final-answers", "marl_verl_at_grpo.math_problems:FinalAnswers")


@hookimpl
def marl_register_workflows(register: Register) -> None:
    register("at-planner-executor", "marl_verl_at_grpo.tiny_workflows:PlannerExecutor")
    register("at-one-walker", "marl_verl_at_grpo.tiny_workflows:OneWalker")
    register("at-tool-caller-planner", "marl_verl_at_grpo.chat_workflows:ToolCallerPlanner")
    register("at-one-chat-walker", "marl_verl_at_grpo.chat_workflows:OneChatWalker")
    register("at-tool-user-reasoner", "marl_verl_at_grpo.math_problems:ToolUserReasoner")
    register("at-one-reasoner", "marl_verl_at_grpo.math_problems:OneReasoner")


@hookimpl
def marl_register_rewards(register: Register) -> None:
    register("at-plan-path", "marl_verl_at_grpo.rewards:at_plan_path")
    register("at-bee-line", "marl_verl_at_grpo.rewards:at_bee_line")
    register("at-bee-line-paid", "marl_verl_at_grpo.rewards:at_bee_line_paid")
    register("at-own-answer", "marl_verl_at_grpo.math_problems:own_answer")
