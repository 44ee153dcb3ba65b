"""A summary of the resolved team: agents, policies, devices, task, algorithm, samplers and steps."""

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING

from marl_verl.algo.sampling import Sampler
from marl_verl.config.hardware import on_gpu
from marl_verl.config.parts import algorithm_of, loss_of, samplers_of
from marl_verl.config.placement import pools_of
from marl_verl.config.policy_models import model_of
from marl_verl.config.schema import Filter, marl_of
from marl_verl.config.stored import BACKEND, is_local, marl_section, separate_reason, updates_per_batch
from marl_verl.models.count import parameters, shapes
from marl_verl.run.checkpoint.folders import complete, step_of
from marl_verl.tasks.base import SCORED

if TYPE_CHECKING:
    from marl_verl.run.prepare import Plan


def describe(plan: "Plan") -> str:
    """The text that `--dry-run` prints."""
    team, config, gpu = plan.team, plan.config, on_gpu(plan.config)
    lines = ["team"]
    for agent in team.agents.values():
        past = team.past.get(agent.policy)
        actor = f"policy {agent.policy}" if past is None else past.described()
        lines.append(f"  agent   {agent.name} acts with {actor}" + f", role reward {agent.reward}" * bool(agent.reward))
        lines[-1] += f", algorithm {agent.algorithm.name or team.algorithm.name}" if agent.algorithm else ""
    lines += [f"  policy  {name}: {_policy(plan, name)}" for name in team.policies]
    for name, critic in plan.resolved.critics.items():
        lines.append(f"  critic  {name}: colocated with policy {critic.policy}")
    if is_local(config):
        lines.append(f"  devices one process on {'one GPU' if gpu else f'{os.cpu_count()} cores'} ({BACKEND}=local)")
    for pool in [] if is_local(config) else pools_of(config, team):
        label, unit = f"pool {pool.name}" if pool.shared else "dedicated", "GPUs" if gpu else "slots"
        lines.append(f"  devices {label}: {pool.nodes} x {pool.gpus} {unit} for {', '.join(pool.policies)}")
    algorithm = algorithm_of(team)
    samplers = samplers_of(algorithm, marl_section(config))
    counts = ", ".join(f"{len(tasks)} {split}" for split, tasks in plan.tasks.items()) or "not loaded"
    task, options = team.task.name, team.task.options
    task = f"{options.get('task', 'files')}, scored by {options['function']}" if task == SCORED else task
    steps = str(config.trainer.total_training_steps)
    if plan.resumed:
        steps = f"{1 + step_of(complete(plan.folder / 'checkpoints')[-1])} to {steps}"
    lines += [
        f"  task    {task} ({counts}), workflow {team.workflow.name}",
        f"  learn   {team.algorithm.name}: {algorithm.describe()}",
        f"  sample  {_sampling(*samplers['sampler'])}",
        f"  test    each task once, and by {_sampling(*samplers['validation'])}",
        *([] if (chosen := marl_of(config).sampler.filters) is None else [f"  groups  {_sampling('filter', chosen)}"]),
        f"  steps   {steps} of {config.data.train_batch_size} tasks",
    ]
    lines += [f"  {name:<7} {fact}" for name, facts in plan.facts.items() for fact in facts]
    lines += [f"  plugin  {file.name} (content {file.source.version})" for file in plan.files]
    return "\n".join([*lines, *plan.notes])


def _sampling(name: str, part: Sampler | Filter) -> str:
    return f"{name}: " + ", ".join(f"{option}={value}" for option, value in dataclasses.asdict(part).items())


def _policy(plan: "Plan", name: str) -> str:
    """A policy's model, its number of parameters, and how it is trained."""
    policy, made = plan.team.policies[name], plan.made.get(name)
    if policy.endpoint is not None:
        return f"{policy.endpoint.model} at {policy.endpoint.url}; external endpoint, frozen"
    if policy.script is not None:
        return f"script {policy.script}"
    path = str(model_of(policy, plan.config).get("path"))
    tensors = shapes(made.folder() if made else Path(path).expanduser())
    size = f" ({parameters(tensors):,} parameters)" if tensors else ""
    base = f"{made.label if made else path}{size}"
    if policy.frozen:
        return f"{base}; frozen"
    section = plan.resolved.policies[name].actor_rollout_ref
    actor, rank = section.actor, section.model.lora_rank
    loss, settings = loss_of(plan.team, name)
    if actor.policy_loss.loss_mode != settings.actor.get("policy_loss", {}).get("loss_mode"):
        loss = f"{actor.policy_loss.loss_mode} (policy_loss.loss_mode)"  # the policy's own, or of loss `verl`
    facts = [f"LoRA rank {rank} trained" if rank else "all parameters trained", loss]
    if plan.config.marl.schedule.mode == "sync":
        tasks, mini = int(plan.config.data.train_batch_size), int(actor.ppo_mini_batch_size)
        updates = updates_per_batch(plan.config, actor)
        rounded = f" ({tasks} tasks in mini-batches of {mini}, rounded)" * (updates * mini != tasks)
        facts.append(f"updates per batch: {updates * int(actor.ppo_epochs)}{rounded}")
    low, high = (actor.get(f"clip_ratio_{side}") or actor.clip_ratio for side in ("low", "high"))
    clip = f"clip_ratio {actor.clip_ratio:g} low {low:g} high" if settings.one_clip else f"clip {low:g}"
    facts += [f"lr {actor.optim.lr:g}", f"{clip} {high:g}", str(actor.loss_agg_mode)]
    facts += [f"KL {actor.kl_loss_coef:g} {actor.kl_loss_type}"] if actor.use_kl_loss else []
    facts += [f"entropy {actor.entropy_coeff:g}"] if actor.entropy_coeff else []
    facts.append(f"temperature {section.rollout.temperature:g}")
    facts += [policy.teacher.described()] if policy.teacher else []
    if (reason := separate_reason(plan.config, actor)) is not None:
        facts.append(f"no shared prefixes ({reason})")
    return f"{base}; {', '.join(facts)}"
