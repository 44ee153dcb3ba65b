"""The parts that come with marl-verl, registered through the same hooks as everybody's; all lazy."""

from __future__ import annotations

from marl_verl.hookspecs import Register, hookimpl


@hookimpl
def marl_register_tasks(register: Register) -> None:
    register("split-plan-path", "marl_verl.tasks.split_plan_path:SplitPlanPath")
    register("inventory", "marl_verl.tasks.inventory:Inventory")


@hookimpl
def marl_register_workflows(register: Register) -> None:
    register("split-plan-path", "marl_verl.tasks.split_plan_path:ScoutMover")
    register("inventory", "marl_verl.tasks.inventory:HolderAsker")


@hookimpl
def marl_register_rewards(register: Register) -> None:
    register("valid-answer", "marl_verl.rewards.valid_answer:valid_answer")


@hookimpl
def marl_register_samplers(register: Register) -> None:
    register("independent", "marl_verl.sampling.independent:Independent")


@hookimpl
def marl_register_credits(register: Register) -> None:
    register("none", "marl_verl.advantage.credit:NoCredit")


@hookimpl
def marl_register_losses(register: Register) -> None:
    register("ppo-clip", "marl_verl.losses:PPO_CLIP")


@hookimpl
def marl_register_algorithms(register: Register) -> None:
    register("grpo", "marl_verl.advantage.builtin:GRPO")
    register("at-grpo", "marl_verl.advantage.builtin:AT_GRPO")
