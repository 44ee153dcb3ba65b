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
    register("best-of", "marl_verl.sampling.best_of:BestOf")


@hookimpl
def marl_register_credits(register: Register) -> None:
    register("none", "marl_verl.credit:NoCredit")
    register("difference", "marl_verl.credit:DifferenceRewards")
    register("c3", "marl_verl.credit:C3")
    register("step-groups", "marl_verl.credit:StepGroups")


@hookimpl
def marl_register_mixes(register: Register) -> None:
    register("weights", "marl_verl.advantage.mix:Mix")


@hookimpl
def marl_register_returns(register: Register) -> None:
    register("immediate", "marl_verl.advantage.returns:Immediate")
    register("discounted", "marl_verl.advantage.returns:Discounted")
    register("path_sum", "marl_verl.advantage.returns:PathSum")
    register("tree_mean", "marl_verl.advantage.returns:TreeMean")
    register("potential-based", "marl_verl.advantage.returns:PotentialBased")
    register("gae", "marl_verl.advantage.gae:GAE")


@hookimpl
def marl_register_groups(register: Register) -> None:
    register("batch", "marl_verl.advantage.groups:BATCH")
    register("task", "marl_verl.advantage.groups:TASK")
    register("agent", "marl_verl.advantage.groups:AGENT")
    register("turn", "marl_verl.advantage.groups:TURN")
    register("siblings", "marl_verl.advantage.groups:SIBLINGS")
    register("observation", "marl_verl.advantage.groups:OBSERVATION")


@hookimpl
def marl_register_baselines(register: Register) -> None:
    register("mean", "marl_verl.advantage.baselines:Mean")
    register("leave-one-out", "marl_verl.advantage.baselines:LeaveOneOut")
    register("max", "marl_verl.advantage.baselines:Max")
    register("none", "marl_verl.advantage.baselines:NoBaseline")


@hookimpl
def marl_register_scales(register: Register) -> None:
    register("unbiased", "marl_verl.advantage.normalise:Unbiased")
    register("population", "marl_verl.advantage.normalise:Population")


@hookimpl
def marl_register_advantages(register: Register) -> None:
    register("advantage", "marl_verl.advantage:Advantage")
    register("group-in-group", "marl_verl.algorithms.gigpo:GroupInGroup")


@hookimpl
def marl_register_losses(register: Register) -> None:
    register("ppo-clip", "marl_verl.losses:PPO_CLIP")
    register("ppo-clip-tis", "marl_verl.losses:PPO_CLIP_TIS")
    register("gspo", "marl_verl.losses:GSPO")
    register("gspo-tis", "marl_verl.losses:GSPO_TIS")
    register("reinforce", "marl_verl.losses:REINFORCE")


@hookimpl
def marl_register_algorithms(register: Register) -> None:
    register("grpo", "marl_verl.algorithms.grpo:GRPO")
    register("grpo-trajectory-mean", "marl_verl.algorithms.grpo:GRPO_TRAJECTORY_MEAN")
    register("reinforce++", "marl_verl.algorithms.reinforce_pp:REINFORCE_PP")
    register("gigpo", "marl_verl.algorithms.gigpo:GIGPO")
    register("ippo", "marl_verl.algorithms.ppo:IPPO")
    register("mappo", "marl_verl.algorithms.ppo:MAPPO")
