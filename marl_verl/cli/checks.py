"""What can be wrong with a run, each in a function that raises MarlError. Nothing here writes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
from omegaconf import DictConfig, OmegaConf

from marl_verl import plugins
from marl_verl.episode import Action, Limits, Run, Stuck, UnknownAgent, Workflow, WorkflowError
from marl_verl.errors import MarlError, missing
from marl_verl.hookspecs import KINDS
from marl_verl.models.count import shapes
from marl_verl.models.tiny import TinyModel, folder_of
from marl_verl.options import build, check_type
from marl_verl.platforms.active import has_accelerator
from marl_verl.rollout.endpoint import check_endpoint
from marl_verl.tasks.base import Split, Task, TaskSet
from marl_verl.tasks.files import read_tasks
from marl_verl.team import Policy, Team

DISK_BYTES = 1 << 30
# from the measured peaks, 4.7 GiB with one policy and 7.4 with two (docs/benchmarks.md), rounded up
CPU_BYTES, CPU_BYTES_A_POLICY, CPU_BYTES_A_SERVER = 2 << 30, 3 << 30, 2 << 30
REHEARSAL_MOVES, REHEARSAL_SECONDS = 1000, 20.0

LEAST = {
    "trainer.total_training_steps": 1,
    "data.train_batch_size": 1,
    "data.max_prompt_length": 1,
    "data.max_response_length": 1,
    "marl.sampler.sessions": 1,
    "marl.validation.sessions": 1,
    "marl.task.train_size": 1,
    "marl.task.test_size": 1,
    "marl.run.seed": 0,
    "marl.run.keep_rows": 0,
    "marl.run.keep_journals": 0,
    "marl.rollout.keep_episodes": 0,
    "marl.checkpoint.keep": 1,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 1,
}
FIXED = (  # a key of verl's that a team does not use, the value it keeps, and where a team says it
    ("data.train_files", None, "a team's tasks are marl.task.train_file"),
    ("data.val_files", None, "a team's held-out tasks are marl.task.test_file"),
    ("algorithm.adv_estimator", "grpo", "a team's advantage is marl.algorithm.name"),
    ("actor_rollout_ref.rollout.n", 1, "attempts a task are marl.sampler.sessions"),
    ("actor_rollout_ref.rollout.name", "vllm", "a team is served by vLLM"),
)
DEFAULT_MODEL = "~/models/deepseek-llm-7b-chat"  # verl's example: nobody has chosen it


def part(kind: str, name: str, base: type | None) -> Any:
    """A registered part, which must be a subclass of `base`; with None, something that can be called."""
    known = plugins.load()
    found = known.get(kind, name)
    if base is None:
        right, wanted = callable(found), "a function"
    else:
        right, wanted = isinstance(found, type) and issubclass(found, base), f"a subclass of {base.__name__}"
    if not right:
        source = known.entry(kind, name).source
        raise MarlError(f"{KINDS[kind]} '{name}' of {source} must be {wanted}, it is {found!r:.80}")
    return found


def check_fixed(config: DictConfig, team: Team) -> None:
    """Keys of verl's that a team says elsewhere: taking them and doing nothing would mislead."""
    for key, value, why in FIXED:
        found = [(key, OmegaConf.select(config, key))]
        if key.startswith("actor_rollout_ref."):
            part = key.removeprefix("actor_rollout_ref.")
            for name, policy in team.policies.items():
                given = OmegaConf.select(OmegaConf.create(policy.override), part)
                found.append((f"marl.policies.{name}.{part}", value if given is None else given))
        for where, given in found:
            if given != value:
                raise MarlError(f"'{where}' must stay {value!r}, it is {given!r}: {why}")


def check_numbers(config: DictConfig) -> None:
    """Values that their type alone does not make right."""
    for key, least in LEAST.items():
        value = OmegaConf.select(config, key)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise MarlError(f"'{key}' must be a whole number, {least} or more, got {value!r}")
    share = config.marl.rollout.max_failed_share
    if not 0 <= share <= 1:
        raise MarlError(f"'marl.rollout.max_failed_share' must be between 0 and 1, got {share!r}")
    for name in ("act_seconds", "call_seconds", "step_seconds", "episode_seconds", "episode_tokens"):
        value = config.marl.rollout[name]
        check_type(value, int | None if name == "episode_tokens" else float | None, f"marl.rollout.{name}")
        if value is not None and value <= 0:
            raise MarlError(f"'marl.rollout.{name}' must be above 0, got {value!r}")
    check_type(tasks := config.marl.run.journal_tasks, int | None, "marl.run.journal_tasks")
    if tasks is not None and tasks < 1:
        raise MarlError(f"'marl.run.journal_tasks' must be above 0, got {tasks}: marl.run.keep_journals=0 stores none")
    if not config.trainer.val_before_train and config.trainer.test_freq < 1 and config.trainer.resume_mode == "disable":
        raise MarlError("nothing would be validated: leave trainer.val_before_train on, or set trainer.test_freq")


def check_batches(config: DictConfig, team: Team) -> None:
    """A batch of tasks must be divisible into each policy's optimiser updates."""
    batch = int(config.data.train_batch_size)
    for name, policy in team.policies.items():
        if not policy.trained:
            continue
        given = OmegaConf.select(OmegaConf.create(policy.override), "actor.ppo_mini_batch_size")
        where = "actor_rollout_ref" if given is None else f"marl.policies.{name}"
        part = config.actor_rollout_ref.actor.ppo_mini_batch_size if given is None else given
        if not isinstance(part, int) or isinstance(part, bool) or part < 1:
            raise MarlError(f"'{where}.actor.ppo_mini_batch_size' must be a whole number, 1 or more, got {part!r}")
        if batch % min(part, batch):
            below = [size for size in range(1, batch + 1) if batch % size == 0]
            near = min(below, key=lambda size: abs(size - part))
            raise MarlError(
                f"data.train_batch_size={batch} is not a multiple of {where}.actor.ppo_mini_batch_size={part}: a batch "
                f"must be divisible into updates, e.g. {near}"
            )


def check_sampling(config: DictConfig, team: Team) -> None:
    """An agent's own limits must fit those of its batch."""
    longest = config.data.max_response_length
    for agent in team.agents.values():
        if agent.sampling.max_tokens is not None and not 1 <= agent.sampling.max_tokens <= longest:
            raise MarlError(
                f"'marl.agents.{agent.name}.sampling.max_tokens' must be between 1 and "
                f"data.max_response_length={longest}, got {agent.sampling.max_tokens}"
            )
        policy, given = team.policies[agent.policy], agent.sampling.temperature
        rollout = policy.override.get("rollout") or {}
        learnt = rollout.get("temperature", config.actor_rollout_ref.rollout.temperature)
        if given not in (None, learnt) and not policy.frozen:
            raise MarlError(
                f"agent '{agent.name}' samples at temperature {given:g}, and its policy '{policy.name}' learns at "
                f"{learnt:g}: set marl.policies.{policy.name}.rollout.temperature instead"
            )


def tiny_models(config: DictConfig, team: Team, marl: dict[str, Any]) -> dict[str, TinyModel]:
    """The tiny models to make; every other policy must have a model that exists."""
    tiny = {}
    for name, policy in team.policies.items():
        where = f"marl.policies.{name}"
        if policy.endpoint is not None:
            check_endpoint(name, policy.endpoint)
            continue
        if policy.tiny is None:
            _check_model(name, model_of(policy, config))
            continue
        if model_of(policy, None).get("path"):
            raise MarlError(f"policy '{name}' has two models, {where}.tiny and {where}.model.path: set one to null")
        options = {"seed": marl["run"]["seed"], **policy.tiny}
        given = {"task": team.task.name, "agents": team.agents_of(name), "task_options": team.task.options}
        tiny[name] = build(TinyModel, {**given, **options}, f"{where}.tiny")
        folder_of(tiny[name])  # asks the task set for a few demonstrations: it may have none
    return tiny


def model_of(policy: Policy, config: DictConfig | None) -> dict[str, Any]:
    """The `model` part of a policy: its own keys, over those of `actor_rollout_ref` where a config is given."""
    base = {} if config is None else OmegaConf.to_container(config.actor_rollout_ref.model)
    own = policy.override.get("model") or {}
    if not isinstance(own, dict) or not isinstance(base, dict):
        raise MarlError(f"'marl.policies.{policy.name}.model' must be a mapping such as {{path: ...}}, got {own!r}")
    return {**{str(key): value for key, value in base.items()}, **own}


def _check_model(policy: str, model: dict[str, Any]) -> None:
    """A local folder must have what training and serving read; a name such as Qwen/Qwen3-0.6B is left to the hub."""
    path = model.get("path")
    if not path or path == DEFAULT_MODEL:
        raise MarlError(
            f"policy '{policy}' has no model: set marl.policies.{policy}.model.path or marl.policies.{policy}.tiny"
        )
    folder = Path(str(path)).expanduser()
    on_hub = re.fullmatch(r"[\w.-]+/[\w.-]+", str(path)) and not folder.exists() and not folder.parent.is_dir()
    if on_hub or "://" in str(path):
        return
    if not folder.is_dir():
        raise missing(f"model folder of policy '{policy}':", folder, folder.parent.glob("*/"))
    words = Path(str(model.get("tokenizer_path") or folder)).expanduser()
    for place, names, what in (
        (folder, ("config.json",), "config.json"),
        (folder, ("*.safetensors", "*.bin"), "weights (*.safetensors)"),
        (words, ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json"), "tokenizer"),
    ):
        if not any(found for name in names for found in place.glob(name)):
            raise MarlError(f"model of policy '{policy}': there is no {what} in '{place}'")
    try:
        shapes(folder)
    except MarlError as error:
        raise MarlError(f"model of policy '{policy}': {error}") from error
    described = words / "tokenizer_config.json"
    inside = described.is_file() and "chat_template" in json.loads(described.read_text(encoding="utf-8"))
    if not inside and not any(words.glob("chat_template*")):
        raise MarlError(
            f"model of policy '{policy}': the tokenizer in '{words}' has no chat template: take a chat model"
        )


def load_tasks(task_set: TaskSet, options: dict[str, Any], split: Split, seed: int) -> list[Task]:
    file = options[f"{split}_file"]
    if file is not None:
        path = Path(str(file)).expanduser()
        if not path.is_file():
            said = str(missing("task file", path, path.parent.glob("*")))
            hint = "" if "did you mean" in said else "; the README of a recipe says how to make its data"
            raise MarlError(f"marl.task.{split}_file: {said}{hint}")
        return read_tasks(path)
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
            raise MarlError(f"{times} {split} tasks have the id '{most}': an id names one task")
    both = {task.id for task in tasks["train"]} & {task.id for task in tasks["test"]}
    if both:
        raise MarlError(
            f"{len(both)} tasks are in both splits, e.g. '{min(both)}': held-out tasks must not be trained on"
        )
    if len(tasks["train"]) < config.data.train_batch_size:
        raise MarlError(
            f"{len(tasks['train'])} training tasks are fewer than data.train_batch_size={config.data.train_batch_size}"
        )


def rehearse(workflow: Workflow, task: Task, team: Team) -> None:
    """Run the workflow once with empty actions, to find now what no action can mend.

    Raises:
        MarlError: it acts for an agent that the team lacks, fails or ends before its first act, or loops for ever.
    """
    acted = False
    limits = Limits(step_seconds=REHEARSAL_SECONDS / 2)  # by itself, a loop without an end never lets the time-out come

    async def play() -> None:
        nonlocal acted
        async with Run(workflow, task, list(team.agents), seed=0, limits=limits) as run:
            for _ in range(REHEARSAL_MOVES):
                acts = await run.next()
                if acts is None:
                    return
                acted = True
                for act in acts:
                    run.supply(act, Action(text=""))

    try:
        asyncio.run(asyncio.wait_for(play(), timeout=REHEARSAL_SECONDS))
    except (UnknownAgent, Stuck):
        raise
    except WorkflowError:
        if not acted:
            raise
        # empty actions are not what the workflow is made for; in training such an episode is counted
    except TimeoutError as error:
        if not acted:
            raise MarlError(
                f"workflow '{team.workflow.name}' did not act within {REHEARSAL_SECONDS:.0f} s on task '{task.id}'"
            ) from error


def check_machine(config: DictConfig, team: Team, folder: Path) -> None:
    parent = next(path for path in (folder, *folder.resolve().parents) if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise MarlError(f"run directory '{folder}' cannot be made: '{parent}' is no folder that can be written to")
    free = shutil.disk_usage(parent).free
    if free < DISK_BYTES:
        raise MarlError(f"{free / 2**30:.1f} GiB are free on the disk of '{parent}', a run needs at least 1 GiB")
    if has_accelerator():
        return
    inside = [policy for policy in team.policies.values() if policy.endpoint is None]
    needed = CPU_BYTES + sum(CPU_BYTES_A_POLICY if policy.trained else CPU_BYTES_A_SERVER for policy in inside)
    available = psutil.virtual_memory().available
    if available < needed:
        raise MarlError(
            f"{available / 2**30:.1f} GiB of memory are free, {len(inside)} policies on a CPU need about "
            f"{needed / 2**30:.0f} GiB: close other programs, or let the agents share a policy"
        )
