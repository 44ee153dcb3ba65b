"""Checks of a run before it starts: each function raises MarlError where a check fails. They write no files."""

import asyncio
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
from omegaconf import DictConfig, OmegaConf

from marl_verl.config.ranges import check_ranges
from marl_verl.config.unused import check_unused
from marl_verl.episode import Act, Action, Limits, Run, StepTimeout, UnknownAgentError, Workflow, WorkflowError
from marl_verl.errors import MarlError, missing
from marl_verl.options import Positive, check_type
from marl_verl.platforms.active import on_gpu
from marl_verl.sandbox import AUTO, Sandbox
from marl_verl.tasks.base import Split, Task, TaskSet
from marl_verl.team import TeamConfig

DISK_BYTES = GIB = 1 << 30
# from the measured peaks, 4.7 GiB with one policy and 7.4 with two (docs/benchmarks.md), rounded up
CPU_BYTES, CPU_BYTES_A_POLICY, CPU_BYTES_A_SERVER = 2 * GIB, 3 * GIB, 2 * GIB
REHEARSAL_MOVES, REHEARSAL_SECONDS = 1000, 20.0

FIXED = (  # a verl key that a team does not use, its required value, and the key that replaces it
    ("data.train_files", None, "a team's tasks are marl.task.train_file, or marl.task.name=verl"),
    ("data.val_files", None, "a team's held-out tasks are marl.task.test_file, or marl.task.name=verl"),
    ("algorithm.adv_estimator", "grpo", "a team's advantage is marl.algorithm.name"),
    ("actor_rollout_ref.rollout.n", 1, "the number of attempts per task is in marl.sampler.options"),
    ("actor_rollout_ref.rollout.name", "vllm", "a team is served by vLLM"),
    (
        "actor_rollout_ref.rollout.pipeline_model_parallel_size",
        1,
        "verl's vLLM servers support tensor parallelism only",
    ),
    ("actor_rollout_ref.rollout.disaggregation.enabled", False, "verl supports it with SGLang only"),
    ("actor_rollout_ref.rollout.checkpoint_engine.backend", "naive", "a policy's servers are on its training GPUs"),
    ("actor_rollout_ref.rollout.mode", "async", "verl has no other mode"),
    ("actor_rollout_ref.rollout.do_sample", True, "an agent's temperature is in marl.agents.<name>.sampling"),
    ("actor_rollout_ref.rollout.val_kwargs.n", 1, "the number of episodes per task is in marl.validation.options"),
    ("actor_rollout_ref.rollout.multi_turn.enable", False, "a team's turns are those of its workflow"),
    ("actor_rollout_ref.actor.grad_clip", 1.0, "verl's FSDP engine clips at actor.optim.clip_grad"),
    (
        "actor_rollout_ref.rollout.agent.agent_loop_manager_class",
        "marl_verl.rollout.manager.TeamRolloutManager",
        "it samples a team's episodes",
    ),
    ("data.custom_cls.path", "pkg://marl_verl.tasks.dataset", "a team's tasks are marl.task"),
    ("algorithm.gamma", 1.0, "a team's discount is in marl.algorithm.options"),
    ("algorithm.lam", 1.0, "a team's lambda is in marl.algorithm.options"),
    ("algorithm.norm_adv_by_std_in_grpo", True, "a team's scale is marl.algorithm.options.scale"),
    ("algorithm.use_kl_in_reward", False, "a team's KL penalty is actor.use_kl_loss"),
    ("trainer.critic_warmup", 0, "a team's critics have none"),
    ("trainer.val_only", False, "a trained run is evaluated by `marl-verl eval`"),
    ("trainer.use_v1", True, "teams are trained by verl's V1 trainer"),
)


def check_fixed(config: DictConfig, team: TeamConfig) -> None:
    """MarlError for a verl key that has no effect on a team: another key replaces it."""
    for key, value, why in FIXED:
        found = [(key, OmegaConf.select(config, key))]
        if (part := key.removeprefix("actor_rollout_ref.")) != key:
            for name, policy in team.policies.items():
                given = OmegaConf.select(OmegaConf.create(policy.override), part)
                found.append((f"marl.policies.{name}.{part}", value if given is None else given))
        for where, given in found:
            if given != value:
                raise MarlError(f"'{where}' must be {value!r}, got {given!r}: {why}")
    check_unused(config, team)


def check_numbers(config: DictConfig, team: TeamConfig | None = None) -> None:
    """Check every value by its range, also those of a team's policies, and that at least one validation takes place."""
    check_ranges(config, team)
    if not config.trainer.val_before_train and config.trainer.test_freq < 1 and config.trainer.resume_mode == "disable":
        raise MarlError("no validation would take place: leave trainer.val_before_train on, or set trainer.test_freq")


def check_sandbox(config: DictConfig) -> None:
    """MarlError if this machine does not give the tier of the sandbox that `marl.run.sandbox` requires."""
    tier = OmegaConf.select(config, "marl.run.sandbox", default=AUTO)
    if tier == AUTO:  # whatever there is
        return
    try:
        Sandbox(str(tier))
    except MarlError as error:
        raise MarlError(f"'marl.run.sandbox': {error}") from error


def check_batches(config: DictConfig, team: TeamConfig) -> None:
    """A batch of tasks must be divisible into each policy's optimiser updates."""
    batch = int(config.data.train_batch_size)
    for name, policy in team.policies.items():
        if not policy.trained:
            continue
        given = OmegaConf.select(OmegaConf.create(policy.override), "actor.ppo_mini_batch_size")
        where = "actor_rollout_ref" if given is None else f"marl.policies.{name}"
        part = config.actor_rollout_ref.actor.ppo_mini_batch_size if given is None else given
        check_type(part, Positive, f"{where}.actor.ppo_mini_batch_size")
        if batch % min(part, batch):
            near = min((size for size in range(1, batch + 1) if batch % size == 0), key=lambda size: abs(size - part))
            what = f"data.train_batch_size={batch} is not a multiple of {where}.actor.ppo_mini_batch_size={part}"
            raise MarlError(f"{what}: set a divisor of the batch size, e.g. {near}")


def check_sampling(config: DictConfig, team: TeamConfig) -> None:
    """Check each agent's sampling options against the batch's length and its policy's temperature."""
    longest = config.data.max_response_length
    for agent in team.agents.values():
        tokens, given = agent.sampling.max_tokens or 0, agent.sampling.temperature
        if tokens > longest:
            where = f"marl.agents.{agent.name}.sampling.max_tokens"
            raise MarlError(f"'{where}' must be <= data.max_response_length={longest}, got {tokens}")
        name, policy = agent.policy, team.policies[agent.policy]
        rollout = policy.override.get("rollout") or {}
        learnt = rollout.get("temperature", config.actor_rollout_ref.rollout.temperature)
        if given not in (None, learnt) and not policy.frozen:
            what = (
                f"agent '{agent.name}' samples at temperature {given:g}, but policy '{name}' is trained at {learnt:g}"
            )
            raise MarlError(f"{what}: set marl.policies.{name}.rollout.temperature instead")


def load_tasks(task_set: TaskSet, options: dict[str, Any], split: Split, seed: int) -> list[Task]:
    """The tasks of a split: from `marl.task.SPLIT_file` where it is set, else generated by the task set."""
    if (file := options[f"{split}_file"]) is not None:
        path = Path(str(file)).expanduser()
        if not path.is_file():
            message = str(missing("task file", path, path.parent.glob("*")))
            hint = "" if "did you mean" in message else " The README of the recipe says how to make its data."
            raise MarlError(f"marl.task.{split}_file: {message}{hint}")
        return task_set.read(path, split)
    try:
        return task_set.generate(split, int(options[f"{split}_size"]), seed)
    except NotImplementedError as error:
        raise MarlError(str(error)) from error


def check_tasks(tasks: dict[Split, list[Task]], config: DictConfig) -> None:
    for split, found in tasks.items():
        if not found:
            raise MarlError(f"the task set made no {split} tasks")
        (most, times), *_ = Counter(task.id for task in found).most_common(1)
        if times > 1:
            raise MarlError(f"{times} {split} tasks have the id '{most}': task ids must be unique")
    if both := {task.id for task in tasks["train"]} & {task.id for task in tasks["test"]}:
        why = "held-out tasks must not be trained on"
        raise MarlError(f"{len(both)} tasks are in both splits, e.g. '{min(both)}': {why}")
    count, batch = len(tasks["train"]), config.data.train_batch_size
    if count < batch:
        raise MarlError(f"{count} training tasks are fewer than data.train_batch_size={batch}")


def set_steps(config: DictConfig, tasks: int) -> None:
    """Set the number of steps of a new run: `total_epochs` over its tasks; `total_training_steps` if that is less."""
    trainer = config.trainer
    if trainer.resume_mode == "disable" or trainer.total_training_steps is None:
        most = tasks // int(config.data.train_batch_size) * int(trainer.total_epochs)
        trainer.total_training_steps = min(most, trainer.total_training_steps or most)


def rehearse(workflow: Workflow, task: Task, team: TeamConfig) -> tuple[tuple[Act, ...], ...]:
    """Run the workflow once with empty actions and return the acts of each move.

    MarlError for an error that does not depend on the actions. A workflow of external processes is not rehearsed.
    """
    if not workflow.replayable:
        return ()
    moves: list[tuple[Act, ...]] = []
    limits = Limits(step_seconds=REHEARSAL_SECONDS / 2)  # an endless loop would block `wait_for`

    async def play() -> None:
        async with Run(workflow, task, list(team.agents), seed=0, limits=limits) as run:
            for _ in range(REHEARSAL_MOVES):
                acts = await run.next()
                if acts is None:
                    return
                moves.append(tuple(acts))
                for act in acts:
                    run.resolve(act, Action(text=""))

    try:
        asyncio.run(asyncio.wait_for(play(), timeout=REHEARSAL_SECONDS))
    except WorkflowError as error:
        # a workflow may reject empty actions; in training such an episode counts as a failed attempt
        if not moves or isinstance(error, UnknownAgentError | StepTimeout):
            raise
    except TimeoutError as error:
        if not moves:
            what = f"workflow '{team.workflow.name}' did not request an act within {REHEARSAL_SECONDS:.0f} s"
            raise MarlError(f"{what} on task '{task.id}'") from error
    return tuple(moves)


def check_machine(config: DictConfig, team: TeamConfig, folder: Path) -> None:
    parent = next(path for path in (folder, *folder.resolve().parents) if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise MarlError(f"run directory '{folder}' cannot be created: '{parent}' is not a writable folder")
    free = shutil.disk_usage(parent).free
    if free < DISK_BYTES:
        raise MarlError(f"{free / GIB:.1f} GiB are free on the disk of '{parent}', but a run needs at least 1 GiB")
    if on_gpu(config):
        return
    inside = [policy for policy in team.policies.values() if policy.endpoint is None]
    needed = CPU_BYTES + sum(CPU_BYTES_A_POLICY if policy.trained else CPU_BYTES_A_SERVER for policy in inside)
    available = psutil.virtual_memory().available
    if available < needed:
        what = f"{len(inside)} policies on a CPU need about {needed / GIB:.0f} GiB"
        remedy = "close other programs, or let the agents share a policy"
        raise MarlError(f"{available / GIB:.1f} GiB of memory are free, but {what}: {remedy}")
