"""A summary of the resolved team: agents, policies, devices, task, algorithm, samplers and steps."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig, OmegaConf

from marl_verl.algo.advantage.estimator import Advantage
from marl_verl.config.backend import KEY, is_local
from marl_verl.config.hardware import on_gpu
from marl_verl.config.loss import paths_reason, separate_reason, updates_per_batch
from marl_verl.config.parts import algorithm_of, named_samplers
from marl_verl.config.placement import Pool, pools_of
from marl_verl.config.policy_models import model_of
from marl_verl.config.resolve import loss_of
from marl_verl.config.reward_function import NAME as SCORED
from marl_verl.config.stored import marl_section
from marl_verl.models.count import adapter_parameters, parameters, shapes
from marl_verl.team import AgentConfig, Named, TeamConfig

if TYPE_CHECKING:
    from marl_verl.run.prepare import Plan


def describe(plan: "Plan") -> str:
    """The text that `--dry-run` prints."""
    team, config, marl, gpu = plan.team, plan.config, plan.config.marl, on_gpu(plan.config)
    lines = ["team"]
    for agent in team.agents.values():
        reward = f", role reward {agent.reward}" if agent.reward else ""
        lines.append(f"  agent   {agent.name} acts with {_actor(agent, team)}{reward}")
    heading = {name: "past  " if name in team.past else "policy" for name in team.policies}
    lines += [f"  {heading[name]}  {name}: {_policy(plan, name)}" for name in team.policies]
    lines += [f"  critic  {name}: {_critic(plan, critic)}" for name, critic in plan.resolved.critics.items()]
    if is_local(config):
        lines.append(f"  devices one process on {'one GPU' if gpu else f'{os.cpu_count()} cores'} ({KEY}=local)")
    else:
        lines += [f"  devices {_place(pool, gpu)}" for pool in pools_of(config, team)]
    algorithm = algorithm_of(team)
    samplers = named_samplers(algorithm, marl_section(config))
    group = algorithm.advantage.group if isinstance(algorithm.advantage, Advantage) else ()
    words = {"train": "training", "test": "held-out"}
    counts = ", ".join(f"{len(plan.tasks[split])} {words[split]}" for split in plan.tasks) or "not loaded"
    lines += [
        f"  task    {_task(team)} ({counts}), workflow {team.workflow.name}",
        f"  learn   {team.algorithm.name}: {algorithm.describe()}",
        *([f"  groups  rows with the same {', '.join(group)}"] if group else []),
        f"  sample  {_sampling(samplers['sampler'])}",
        f"  test    {_once(config.actor_rollout_ref.rollout.val_kwargs)}, and by {_sampling(samplers['validation'])}",
        f"  steps   {config.trainer.total_training_steps} of {config.data.train_batch_size} tasks, seed {marl.run.seed}"
        f"{_schedule(marl.schedule)}",
    ]
    lines += [f"  memory  {need}" for need in plan.needs]
    lines += [f"  plugin  {file.name} (content {file.version})" for file in plan.files]
    return "\n".join([*lines, *plan.notes])


def _actor(agent: AgentConfig, team: TeamConfig) -> str:
    past = team.past.get(agent.policy)
    return f"policy {agent.policy}" if past is None else str(past.described())


def _schedule(schedule: DictConfig) -> str:
    if schedule.mode == "sync":
        return ""
    fill = "the rows of a batch of tasks" if schedule.fill is None else f"{schedule.fill} buffered rows"
    batch = "" if schedule.batch is None else f"{schedule.batch} rows per update, "
    return (
        f"; {schedule.mode}: each policy updates at {fill}, {batch}"
        f"staleness at most {schedule.max_staleness} updates; updates depend on timing, so runs are not reproducible"
    )


def _once(held_out: DictConfig) -> str:
    return f"once at temperature {held_out.temperature:g}" if held_out.temperature else "greedily"


def _sampling(sampler: Named) -> str:
    return f"{sampler.name}: " + ", ".join(f"{option}={value}" for option, value in sampler.options.items())


def _task(team: TeamConfig) -> str:
    name, options = team.task.name, team.task.options
    return f"{options.get('task', 'files')}, scored by {options['function']}" if name == SCORED else name


def _policy(plan: "Plan", name: str) -> str:
    """A policy's model, its number of trained parameters, and its loss settings."""
    policy, made = plan.team.policies[name], plan.made.get(name)
    if policy.endpoint is not None:
        return f"{policy.endpoint.model} at {policy.endpoint.url}; external endpoint, frozen"
    if policy.script is not None:
        return f"script {policy.script}"
    path = str(model_of(policy, plan.config).get("path"))
    base = made.label if made else path
    tensors = shapes(made.folder() if made else Path(path).expanduser())
    size = f"{parameters(tensors):,}" if tensors else "all"
    if policy.frozen:
        use = f"{size} parameters, inference only" if tensors else "inference only"
        return f"{base}; frozen ({use})"
    own = plan.resolved.policies[name].actor_rollout_ref
    actor, model = own.actor, own.model
    trained = f"{size} parameters trained"
    if model.lora_rank:
        targets = OmegaConf.to_container(OmegaConf.create({"at": model.target_modules}))["at"]  # type: ignore[index,call-overload]
        trained = f"LoRA rank {model.lora_rank} on {targets}, base model frozen"
        if tensors:
            learnt = adapter_parameters(tensors, int(model.lora_rank), targets)
            trained = f"LoRA rank {model.lora_rank} on {targets}, {learnt:,} parameters trained, {size} frozen"
        if others := [other for other in plan.team.alike(name) if other != name]:
            trained += f" and shared with {', '.join(others)}"
    loss, settings = loss_of(plan.team, name)
    mode = actor.policy_loss.loss_mode
    if mode != settings.actor.get("policy_loss", {}).get("loss_mode"):  # the policy's own, or of loss `verl`
        loss = f"{mode} (policy_loss.loss_mode)"
    kl = f", KL {actor.kl_loss_coef:g} to the initial weights" if actor.use_kl_loss else ""
    if (why := separate_reason(plan.config, actor)) is not None:
        kl += f", no shared prefixes ({why})"
    elif (why := paths_reason(own)) is not None:
        kl += f", shared prefixes without siblings ({why})"
    count = updates_per_batch(plan.config, actor) * int(actor.ppo_epochs)
    often = f", {count} update{'s' if count > 1 else ''} per batch" if plan.config.marl.schedule.mode == "sync" else ""
    return f"{base}; {trained}, {loss}, lr {actor.optim.lr:g}{often}{kl}"


def _critic(plan: "Plan", critic: DictConfig) -> str:
    sees = "the agent's observation" if critic.scope == "policy" else "the joint observation"
    model = OmegaConf.select(plan.config, "marl.critic.model.path") or f"the model of policy {critic.policy}"
    if plan.made_critic is not None:
        model = f"a {plan.made_critic[1].label}"
    return f"reads {sees}; from {model}, lr {critic.critic.optim.lr:g}, colocated with policy {critic.policy}"


def _place(pool: Pool, gpu: bool) -> str:
    unit = "GPU" if gpu else "slot"
    nodes = f" on each of {pool.nodes} nodes" if pool.nodes > 1 else ""
    size = f"{pool.gpus} {unit}{'s' if pool.gpus > 1 else ''}{nodes}"
    if not pool.shared:
        return f"{', '.join(pool.policies)}: {size} dedicated"
    turns = "; policies update one at a time while the pool's servers sleep" if gpu else ""
    return f"pool {pool.name}: {size} shared by {', '.join(pool.policies)}{turns}"
