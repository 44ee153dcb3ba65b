"""Everything that can be wrong is found here, before work starts; then the run directory is made."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from marl_verl import plugins
from marl_verl.advantage import Algorithm, RowTable
from marl_verl.cli.progress import Display
from marl_verl.config.compose import compose, with_overrides
from marl_verl.config.resolve import resolve
from marl_verl.episode import Action, Run, UnknownAgent, Workflow, WorkflowError
from marl_verl.errors import MarlError, missing, unknown
from marl_verl.hookspecs import KINDS
from marl_verl.models.tiny import TinyModel, ensure_all, folder_of
from marl_verl.options import build
from marl_verl.platforms.active import has_accelerator
from marl_verl.sampling import Sampler
from marl_verl.tasks.base import Split, Task, TaskSet
from marl_verl.tasks.files import read_tasks, write_tasks
from marl_verl.team import Policy, Team, read_team
from marl_verl.trainer import checkpoint

COMPOSED = "composed.yaml"
"""The config before policies are filled in and interpolations resolved: what a continued run starts from, so that an
override of it reaches everything that depends on it."""

DISK_BYTES = 1 << 30
# measured peak of a two-policy CPU run, and what each policy adds (docs/benchmarks.md)
CPU_BYTES, CPU_BYTES_A_POLICY = 3 << 30, 2 << 30
REHEARSAL_MOVES, REHEARSAL_SECONDS = 1000, 20.0

LEAST = {
    "trainer.total_training_steps": 1,
    "data.train_batch_size": 1,
    "data.max_prompt_length": 1,
    "data.max_response_length": 1,
    "marl.sampler.sessions": 1,
    "marl.task.train_size": 1,
    "marl.task.test_size": 1,
    "marl.run.seed": 0,
    "marl.rollout.keep_episodes": 0,
    "marl.checkpoint.keep": 1,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 1,
}
FIXED = (  # a key of verl's that a team does not use, the value it keeps, and where a team says it
    ("data.train_files", None, "a team's tasks are marl.task.train_file"),
    ("data.val_files", None, "a team's held-out tasks are marl.task.test_file"),
    ("algorithm.adv_estimator", "grpo", "a team's advantage is marl.algorithm.name"),
    ("actor_rollout_ref.rollout.n", 1, "episodes a task are marl.sampler.sessions"),
    ("actor_rollout_ref.rollout.name", "vllm", "a team is served by vLLM"),
)
VERL_LOSSES = ("ppo-clip",)  # the loss of verl that needs no registration
DEFAULT_MODEL = "~/models/deepseek-llm-7b-chat"  # verl's example: nobody has chosen it


@dataclass
class Plan:
    """A checked run: what will be trained, with which parts, on which tasks.

    Attributes:
        config: composed, not resolved; model paths of tiny models are still to be filled in.
        tiny: policy -> the tiny model to make.
        folder: the run directory; it exists only when an earlier run is continued.
    """

    config: DictConfig
    team: Team
    tasks: dict[Split, list[Task]]
    tiny: dict[str, TinyModel]
    folder: Path
    resumed: bool = False

    def describe(self) -> str:
        """The resolved team in a few lines."""
        marl, lines = self.config.marl, []
        for agent in self.team.agents.values():
            reward = f", role reward {agent.reward}" if agent.reward else ""
            lines.append(f"  agent   {agent.name} acts with policy {agent.policy}{reward}")
        for name, policy in self.team.policies.items():
            model = _model_of(policy, self.config).get("path")
            what = f"tiny model, {self.tiny[name].steps} warm-up steps" if name in self.tiny else str(model)
            lines.append(f"  policy  {name}: {what}{', frozen' if policy.frozen else ''}")
        settings = ", ".join(f"{name}={value}" for name, value in _algorithm(self.team).options().items())
        counts = f"{len(self.tasks['train'])} training, {len(self.tasks['test'])} held-out"
        lines += [
            f"  task    {self.team.task.name} ({counts}), workflow {self.team.workflow.name}",
            f"  learn   {self.team.algorithm.name}: {settings}",
            f"  steps   {self.config.trainer.total_training_steps} of {self.config.data.train_batch_size} tasks x "
            f"{marl.sampler.sessions} episodes, seed {marl.run.seed}",
        ]
        return "\n".join(["team", *lines])


def plan_run(recipe: Path, overrides: list[str]) -> Plan:
    """Read and check a recipe. Writes nothing.

    Raises:
        MarlError: whatever is wrong with it, in one sentence.
    """
    config = compose(recipe, overrides)
    OmegaConf.update(config, "marl.run.recipe", str(recipe), force_add=True)
    return _check(config, _new_folder(config, recipe.stem))


def continue_run(folder: Path, overrides: list[str]) -> Plan:
    """Read and check the config of an earlier run, to continue it at its newest complete checkpoint.

    Raises:
        MarlError: no run there, none of its checkpoints is complete, nothing is left to do, or whatever is wrong with
            the overrides.
    """
    stored = folder / COMPOSED
    if not stored.is_file():
        near = [path.parent for path in folder.parent.glob(f"*/{COMPOSED}")]
        raise missing("run in", folder, near)
    saved = checkpoint.complete(folder / "checkpoints")
    if not saved:
        raise MarlError(f"run '{folder}' has no complete checkpoint to continue from: start it anew")
    try:
        config = OmegaConf.load(stored)
    except (OmegaConfBaseException, yaml.YAMLError, UnicodeDecodeError) as error:
        raise MarlError(f"'{stored}' cannot be read: {' '.join(str(error).split())}") from error
    assert isinstance(config, DictConfig)
    config = with_overrides(config, overrides)
    config.trainer.resume_mode = "auto"
    plan = _check(config, folder)
    plan.resumed = True
    team = checkpoint.read(saved[-1])
    checkpoint.check_identity(team, checkpoint.identity(config), saved[-1])
    if config.trainer.total_training_steps <= team["step"]:
        raise MarlError(
            f"run '{folder}' is at step {team['step']} already: to train on, give a trainer.total_training_steps "
            f"above that, it is {config.trainer.total_training_steps}"
        )
    return plan


def _check(config: DictConfig, folder: Path) -> Plan:
    try:
        marl: dict[str, Any] = OmegaConf.to_container(config.marl, resolve=True)  # type: ignore[assignment]
    except OmegaConfBaseException as error:
        raise MarlError(f"the marl section cannot be resolved: {' '.join(str(error).split())}") from error
    team = read_team(marl)
    algorithm = _algorithm(team)
    sampler = build(_part("samplers", algorithm.sampler, Sampler), marl["sampler"]["options"], "marl.sampler.options")
    for agent in team.agents.values():
        if agent.reward is not None:
            _part("rewards", agent.reward, None)
    task_set = build(_part("tasks", team.task.name, TaskSet), team.task.options, "marl.task.options")
    workflow = build(_part("workflows", team.workflow.name, Workflow), team.workflow.options, "marl.workflow.options")
    del sampler  # built for its checks only: the rollout workers make their own
    _check_numbers(config)
    _check_fixed(config, team)
    _check_advantage(algorithm, team)
    tiny = _tiny_models(config, team, marl)
    tasks: dict[Split, list[Task]] = {
        split: _tasks(task_set, marl["task"], split, marl["run"]["seed"]) for split in ("train", "test")
    }
    _check_tasks(tasks, config)
    _rehearse(workflow, tasks["train"][0], team)
    resolve(config, team)
    _check_machine(config, team, folder)
    return Plan(config, team, tasks, tiny, folder)


def _part(kind: str, name: str, base: type | None) -> Any:
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


def _algorithm(team: Team) -> Algorithm:
    """The team's algorithm with its options, whose every name is registered."""
    known = plugins.load()
    found = known.get("algorithms", team.algorithm.name)
    if not isinstance(found, Algorithm):
        raise MarlError(f"algorithm '{team.algorithm.name}' must be an Algorithm, it is {found!r:.80}")
    algorithm = found.with_options(team.algorithm.options, where="marl.algorithm.options")
    for kind, name, more in (("credits", algorithm.credit, ()), ("losses", algorithm.loss, VERL_LOSSES)):
        if name not in (*known.names(kind), *more):
            raise unknown(KINDS[kind], name, (*known.names(kind), *more))
    return algorithm


def _check_fixed(config: DictConfig, team: Team) -> None:
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


def _check_advantage(algorithm: Algorithm, team: Team) -> None:
    """Try the algorithm on made-up rows of this team: a group column or a reward that it cannot find shows now."""
    rows = [
        {
            "uid": "rehearsal",
            "session": session,
            "index": index,
            "turn": 0,
            "agent": agent.name,
            "policy": agent.policy,
            "rewards": {"team": float(session), **({"role": 0.0} if agent.reward else {})},
            "length": 1,
        }
        for session in range(2)
        for index, agent in enumerate(team.agents.values())
    ]
    try:
        algorithm.compute(RowTable.from_rows(rows))
    except MarlError as error:
        raise MarlError(f"algorithm '{team.algorithm.name}' does not fit the team: {error}") from error


def _check_numbers(config: DictConfig) -> None:
    """Values that their type alone does not make right."""
    for key, least in LEAST.items():
        value = OmegaConf.select(config, key)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise MarlError(f"'{key}' must be a whole number, {least} or more, got {value!r}")
    share, seconds = config.marl.rollout.max_failed_share, config.marl.rollout.act_seconds
    if not 0 <= share <= 1:
        raise MarlError(f"'marl.rollout.max_failed_share' must be between 0 and 1, got {share!r}")
    if seconds <= 0:
        raise MarlError(f"'marl.rollout.act_seconds' must be above 0, got {seconds!r}")
    batch, part = config.data.train_batch_size, config.actor_rollout_ref.actor.ppo_mini_batch_size
    if batch % min(part, batch):
        raise MarlError(
            f"data.train_batch_size={batch} is not a multiple of actor_rollout_ref.actor.ppo_mini_batch_size={part}"
        )


def _tiny_models(config: DictConfig, team: Team, marl: dict[str, Any]) -> dict[str, TinyModel]:
    """The tiny models to make; every other policy must have a model that exists."""
    tiny = {}
    for name, policy in team.policies.items():
        where = f"marl.policies.{name}"
        if policy.tiny is None:
            _check_model(name, _model_of(policy, config))
            continue
        if _model_of(policy, None).get("path"):
            raise MarlError(f"policy '{name}' has two models, {where}.tiny and {where}.model.path: set one to null")
        options = {"seed": marl["run"]["seed"], **policy.tiny}
        given = {"task": team.task.name, "agents": team.agents_of(name), "task_options": team.task.options}
        tiny[name] = build(TinyModel, {**given, **options}, f"{where}.tiny")
        folder_of(tiny[name])  # asks the task set for a few demonstrations: it may have none
    return tiny


def _model_of(policy: Policy, config: DictConfig | None) -> dict[str, Any]:
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
    described = words / "tokenizer_config.json"
    inside = described.is_file() and "chat_template" in json.loads(described.read_text(encoding="utf-8"))
    if not inside and not any(words.glob("chat_template*")):
        raise MarlError(
            f"model of policy '{policy}': the tokenizer in '{words}' has no chat template: take a chat model"
        )


def _tasks(task_set: TaskSet, options: dict[str, Any], split: Split, seed: int) -> list[Task]:
    file = options[f"{split}_file"]
    if file is not None:
        return read_tasks(Path(str(file)).expanduser())
    try:
        return task_set.generate(split, int(options[f"{split}_size"]), seed)
    except NotImplementedError as error:
        raise MarlError(str(error)) from error


def _check_tasks(tasks: dict[Split, list[Task]], config: DictConfig) -> None:
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


def _rehearse(workflow: Workflow, task: Task, team: Team) -> None:
    """Run the workflow once with empty actions, to find now what no action can mend.

    Raises:
        MarlError: it acts for an agent that the team lacks, or fails or ends before its first act.
    """
    acted = False

    async def play() -> None:
        nonlocal acted
        async with Run(workflow, task, list(team.agents), seed=0) as run:
            for _ in range(REHEARSAL_MOVES):
                acts = await run.next()
                if acts is None:
                    return
                acted = True
                for act in acts:
                    run.supply(act, Action(text=""))

    try:
        asyncio.run(asyncio.wait_for(play(), timeout=REHEARSAL_SECONDS))
    except UnknownAgent:
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


def _check_machine(config: DictConfig, team: Team, folder: Path) -> None:
    parent = next(path for path in (folder, *folder.resolve().parents) if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise MarlError(f"run directory '{folder}' cannot be made: '{parent}' is no folder that can be written to")
    free = shutil.disk_usage(parent).free
    if free < DISK_BYTES:
        raise MarlError(f"{free / 2**30:.1f} GiB are free on the disk of '{parent}', a run needs at least 1 GiB")
    if has_accelerator():
        return
    needed = CPU_BYTES + CPU_BYTES_A_POLICY * len(team.policies)
    available = psutil.virtual_memory().available
    if available < needed:
        raise MarlError(
            f"{available / 2**30:.1f} GiB of memory are free, {len(team.policies)} policies on a CPU need about "
            f"{needed / 2**30:.0f} GiB: close other programs, or let the agents share a policy"
        )


def _new_folder(config: DictConfig, stem: str) -> Path:
    parent, name = Path(str(config.marl.run.dir)).expanduser(), config.marl.run.name
    if name is None:
        number = 1
        while (parent / f"{stem}-{number}").exists():
            number += 1
        return parent / f"{stem}-{number}"
    if str(name) in ("", ".", "..") or Path(str(name)).name != str(name):
        raise MarlError(f"'marl.run.name' must be the name of a folder, without '/', got {str(name)!r}")
    if (parent / str(name)).exists():
        raise MarlError(
            f"run directory '{parent / str(name)}' exists: choose another marl.run.name, or continue it with --resume"
        )
    return parent / str(name)


def make_run_directory(plan: Plan, display: Display) -> Path:
    """Make the tiny models, then the run directory with everything the trainer reads: all of it, or nothing."""
    composed = OmegaConf.to_yaml(plan.config)
    names = list(plan.tiny)
    paths: list[Path] = []
    if names:
        with display.task("making tiny models") as advance:
            paths = ensure_all([plan.tiny[name] for name in names], progress=advance)
    for name, path in zip(names, paths, strict=True):
        OmegaConf.update(plan.config, f"marl.policies.{name}.model.path", str(path), force_add=True)
    folder = plan.folder.resolve()
    data = {split: Path("data") / f"{split}.jsonl" for split in ("train", "test")}
    OmegaConf.update(plan.config, "marl.run.folder", str(folder), force_add=True)
    plan.config.data.train_files, plan.config.data.val_files = str(folder / data["train"]), str(folder / data["test"])
    if plan.config.data.get("val_batch_size") is None:
        plan.config.data.val_batch_size = len(plan.tasks["test"])
    team = read_team(OmegaConf.to_container(plan.config.marl, resolve=True))  # type: ignore[arg-type]
    resolved = resolve(plan.config, team)

    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-run-", dir=folder.parent) as parent:
        new = Path(parent) / folder.name
        for split, tasks in plan.tasks.items():
            write_tasks(tasks, new / data[split])
        (new / COMPOSED).write_text(composed, encoding="utf-8")
        OmegaConf.save(resolved, new / "config.yaml")
        (new / "plugins.json").write_text(json.dumps(plugins.load().describe(), indent=1) + "\n", encoding="utf-8")
        if plan.resumed:
            shutil.copytree(new, folder, dirs_exist_ok=True)
        else:
            new.rename(folder)
    return plan.folder
