"""Everything that can be wrong is found here, before work starts; then the run directory is made."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from marl_verl import plugins
from marl_verl.cli.progress import Display
from marl_verl.config.compose import check_keys, compose
from marl_verl.config.resolve import resolve
from marl_verl.errors import MarlError, nearest
from marl_verl.models.tiny import TinyModel, ensure_all
from marl_verl.options import build
from marl_verl.platforms.active import has_accelerator
from marl_verl.tasks.base import Split, Task, TaskSet
from marl_verl.tasks.files import read_tasks, write_tasks
from marl_verl.team import Team, read_team

DISK_BYTES = 1 << 30
# measured peak of a two-policy CPU run, and what each policy adds (docs/benchmarks.md)
CPU_BYTES, CPU_BYTES_A_POLICY = 3 << 30, 2 << 30


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
            model = policy.override.get("model", {}).get("path") or self.config.actor_rollout_ref.model.path
            what = f"tiny model, {self.tiny[name].steps} warm-up steps" if name in self.tiny else str(model)
            lines.append(f"  policy  {name}: {what}{', frozen' if policy.frozen else ''}")
        algorithm = plugins.load().get("algorithms", self.team.algorithm.name).with_options(self.team.algorithm.options)
        settings = ", ".join(f"{name}={value}" for name, value in algorithm.options().items())
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
    return _check(config, _new_folder(config, recipe.stem))


def continue_run(folder: Path, overrides: list[str]) -> Plan:
    """Read and check the config of an earlier run, to continue it at its newest complete checkpoint."""
    stored = folder / "config.yaml"
    if not stored.is_file():
        near = [str(path.parent) for path in folder.parent.glob("*/config.yaml")] if folder.parent.is_dir() else []
        raise MarlError(f"no run in '{folder}': {nearest(str(folder), near)}")
    if not list((folder / "checkpoints").glob("step_*/team.json")):
        raise MarlError(f"run '{folder}' has no complete checkpoint to continue from: start it anew")
    try:
        config = OmegaConf.load(stored)
        given = OmegaConf.from_dotlist(overrides)
    except (OmegaConfBaseException, ValueError) as error:
        raise MarlError(f"run '{folder}' cannot be continued with {overrides}: {str(error).splitlines()[0]}") from error
    check_keys(OmegaConf.to_container(given), OmegaConf.to_container(config), "")
    config = OmegaConf.merge(config, given)
    assert isinstance(config, DictConfig)
    config.trainer.resume_mode = "auto"
    plan = _check(config, folder)
    plan.resumed = True
    return plan


def _check(config: DictConfig, folder: Path) -> Plan:
    marl: dict[str, Any] = OmegaConf.to_container(config.marl, resolve=True)  # type: ignore[assignment]
    team = read_team(marl)
    known = plugins.load()
    algorithm = known.get("algorithms", team.algorithm.name).with_options(team.algorithm.options)
    build(known.get("samplers", algorithm.sampler), marl["sampler"]["options"], "marl.sampler.options")
    for agent in team.agents.values():
        if agent.reward is not None:
            known.get("rewards", agent.reward)
    task_set = build(known.get("tasks", team.task.name), team.task.options, "marl.task.options")
    workflow = build(known.get("workflows", team.workflow.name), team.workflow.options, "marl.workflow.options")
    _check_numbers(config)
    tiny = _tiny_models(config, team, marl)
    tasks: dict[Split, list[Task]] = {
        split: _tasks(task_set, marl["task"], split, marl["run"]["seed"]) for split in ("train", "test")
    }
    _check_tasks(tasks, config)
    _rehearse(workflow, tasks["train"][0], team)
    resolve(config, team)
    _check_machine(config, team, folder)
    return Plan(config, team, tasks, tiny, folder)


def _check_numbers(config: DictConfig) -> None:
    positive = (
        "trainer.total_training_steps",
        "data.train_batch_size",
        "marl.sampler.sessions",
        "marl.task.train_size",
        "marl.task.test_size",
        "actor_rollout_ref.actor.ppo_mini_batch_size",
    )
    for key in positive:
        value = OmegaConf.select(config, key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise MarlError(f"'{key}' must be a whole number above 0, got {value!r}")
    batch, part = config.data.train_batch_size, config.actor_rollout_ref.actor.ppo_mini_batch_size
    if batch % min(part, batch):
        raise MarlError(
            f"data.train_batch_size={batch} is not a multiple of actor_rollout_ref.actor.ppo_mini_batch_size={part}"
        )


def _tiny_models(config: DictConfig, team: Team, marl: dict[str, Any]) -> dict[str, TinyModel]:
    """The tiny models to make; every other policy must have a model that exists."""
    tiny = {}
    for name, policy in team.policies.items():
        if policy.tiny is not None:
            options = {"seed": marl["run"]["seed"], **policy.tiny}
            given = {"task": team.task.name, "agents": team.agents_of(name), "task_options": team.task.options}
            tiny[name] = build(TinyModel, {**given, **options}, f"marl.policies.{name}.tiny")
            continue
        path = policy.override.get("model", {}).get("path") or config.actor_rollout_ref.model.path
        if not path:
            raise MarlError(
                f"policy '{name}' has no model: set marl.policies.{name}.model.path, or marl.policies.{name}.tiny"
            )
        local = Path(str(path)).expanduser()
        looks_local = str(path).startswith(("/", "~", ".")) or local.exists() or str(path).count("/") != 1
        if looks_local and not (local / "config.json").is_file():
            near = [str(other) for other in local.parent.glob("*")] if local.parent.is_dir() else []
            raise MarlError(f"model of policy '{name}': no config.json in '{path}': {nearest(str(local), near)}")
    return tiny


def _tasks(task_set: TaskSet, options: dict[str, Any], split: Split, seed: int) -> list[Task]:
    file = options[f"{split}_file"]
    if file is not None:
        return read_tasks(Path(file).expanduser())
    try:
        return task_set.generate(split, int(options[f"{split}_size"]), seed)
    except NotImplementedError as error:
        raise MarlError(str(error)) from error


def _check_tasks(tasks: dict[Split, list[Task]], config: DictConfig) -> None:
    both = {task.id for task in tasks["train"]} & {task.id for task in tasks["test"]}
    if both:
        raise MarlError(f"{len(both)} tasks are in both splits, e.g. '{min(both)}': held-out tasks must not be trained on")
    if len(tasks["train"]) < config.data.train_batch_size:
        raise MarlError(
            f"{len(tasks['train'])} training tasks are fewer than data.train_batch_size={config.data.train_batch_size}"
        )


def _rehearse(workflow: Any, task: Task, team: Team) -> None:
    """Run the workflow once with empty actions: one that acts for an unknown agent, or never acts, is found now."""
    from marl_verl.episode import Action, Run, UnknownAgent

    async def play() -> None:
        run = Run(workflow, task, list(team.agents), seed=0)
        try:
            for _ in range(1000):
                acts = await run.next()
                if acts is None:
                    return
                for act in acts:
                    run.supply(act, Action(text="", prompt_ids=[], response_ids=[], log_probs=[]))
        finally:
            run.close()

    try:
        asyncio.run(asyncio.wait_for(play(), timeout=20))
    except UnknownAgent as error:
        raise MarlError(str(error)) from error
    except Exception:  # noqa: BLE001 - empty actions are not what the workflow is made for; in training it is counted
        return


def _check_machine(config: DictConfig, team: Team, folder: Path) -> None:
    parent = next(path for path in (folder, *folder.parents) if path.exists())
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
    if (parent / str(name)).exists():
        raise MarlError(f"run directory '{parent / str(name)}' exists: choose another marl.run.name, or use --resume")
    return parent / str(name)


def make_run_directory(plan: Plan, display: Display) -> Path:
    """Make the tiny models, then the run directory with everything the trainer reads."""
    names = list(plan.tiny)
    paths: list[Path] = []
    if names:
        with display.task("making tiny models") as advance:
            paths = ensure_all([plan.tiny[name] for name in names], progress=advance)
    for name, path in zip(names, paths, strict=True):
        OmegaConf.update(plan.config, f"marl.policies.{name}.model.path", str(path), force_add=True)
    folder = plan.folder.resolve()
    files = {split: folder / "data" / f"{split}.jsonl" for split in ("train", "test")}
    OmegaConf.update(plan.config, "marl.run.folder", str(folder), force_add=True)
    plan.config.data.train_files, plan.config.data.val_files = str(files["train"]), str(files["test"])
    if plan.config.data.get("val_batch_size") is None:
        plan.config.data.val_batch_size = len(plan.tasks["test"])
    team = read_team(OmegaConf.to_container(plan.config.marl, resolve=True))  # type: ignore[arg-type]
    resolved = resolve(plan.config, team)
    folder.mkdir(parents=True, exist_ok=plan.resumed)
    for split, tasks in plan.tasks.items():
        write_tasks(tasks, files[split])
    OmegaConf.save(resolved, folder / "config.yaml")
    (folder / "plugins.json").write_text(json.dumps(plugins.load().describe(), indent=1) + "\n")
    return plan.folder
