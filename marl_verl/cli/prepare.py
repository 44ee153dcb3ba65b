"""Everything that can be wrong is found here, before work starts; then the run directory is made."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from marl_verl import plugins
from marl_verl.cli import checks, fit
from marl_verl.cli.progress import Display
from marl_verl.config.compose import compose, with_overrides
from marl_verl.config.critic import tiny_critic
from marl_verl.config.resolve import resolve
from marl_verl.config.schedule import check_schedule
from marl_verl.episode import Workflow
from marl_verl.errors import MarlError, missing
from marl_verl.models.tiny import TinyModel, ensure_all
from marl_verl.options import build
from marl_verl.parts import algorithm_of
from marl_verl.tasks.base import Split, Task, TaskSet
from marl_verl.tasks.files import write_tasks
from marl_verl.team import Team, read_team
from marl_verl.trainer import checkpoint, identity
from marl_verl.trainer.placement import check_placement

COMPOSED = "composed.yaml"
"""The config before policies are filled in and interpolations resolved: what a continued run starts from, so that an
override of it reaches everything that depends on it."""


@dataclass
class Plan:
    """A checked run: what will be trained, with which parts, on which tasks.

    Attributes:
        config: composed, not resolved; model paths of tiny models are still to be filled in.
        resolved: what the trainer would read, but for those paths.
        tiny: policy -> the tiny model to make.
        tiny_critic: the one to make for the critics, if any.
        folder: the run directory; it exists only when an earlier run is continued.
    """

    config: DictConfig
    resolved: DictConfig
    team: Team
    tasks: dict[Split, list[Task]]
    tiny: dict[str, TinyModel]
    tiny_critic: TinyModel | None
    folder: Path
    resumed: bool = False


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
        MarlError: no run there, none of its checkpoints is complete, the newest is damaged, its run had another team,
            algorithm, plugins or tasks, nothing is left to do, or whatever is wrong with the overrides.
    """
    stored = folder / COMPOSED
    if not stored.is_file():
        near = [path.parent for path in folder.parent.glob(f"*/{COMPOSED}")]
        raise missing("run in", folder, near)
    saved = checkpoint.newest(folder)
    if saved is None:
        raise MarlError(f"run '{folder}' has no complete checkpoint to continue from: start it anew")
    team = checkpoint.read(saved)
    if identity.gone(team["plugins"]):  # without them nothing else of the run can be looked at
        identity.refuse(identity.plugin_changes(team["plugins"]), saved)
    try:
        config = OmegaConf.load(stored)
    except (OmegaConfBaseException, yaml.YAMLError, UnicodeDecodeError) as error:
        raise MarlError(f"'{stored}' cannot be read: {' '.join(str(error).split())}") from error
    assert isinstance(config, DictConfig)
    config = with_overrides(config, overrides)
    config.trainer.resume_mode = "auto"
    config.trainer.val_before_train = False  # the run has its first validation already
    plan = _check(config, folder)
    plan.resumed = True
    identity.check_same(team, resolve(config, plan.team), saved)
    _check_same_tasks(plan)
    if config.trainer.total_training_steps <= team["step"]:
        raise MarlError(
            f"run '{folder}' is at step {team['step']} already: to train on, give a trainer.total_training_steps "
            f"above that, it is {config.trainer.total_training_steps}"
        )
    return plan


def _check_same_tasks(plan: Plan) -> None:
    """Raise MarlError if the run has trained on other tasks: its place in the data would mean nothing."""
    before = plan.folder / "data" / "train.jsonl"
    with tempfile.TemporaryDirectory() as folder:
        now = Path(folder) / "train.jsonl"
        write_tasks(plan.tasks["train"], now)
        if before.is_file() and before.read_bytes() != now.read_bytes():
            raise MarlError(
                f"the training tasks are not those in '{before}' any more: the task file or the task set that makes "
                "them has changed; continue with what the run had, or start a new run"
            )


def _check(config: DictConfig, folder: Path) -> Plan:
    try:
        marl: dict[str, Any] = OmegaConf.to_container(config.marl, resolve=True)  # type: ignore[assignment]
    except OmegaConfBaseException as error:
        raise MarlError(f"the marl section cannot be resolved: {' '.join(str(error).split())}") from error
    team = read_team(marl)
    algorithm = algorithm_of(team)
    samplers = fit.samplers(algorithm, marl)
    for agent in team.agents.values():
        if agent.reward is not None:
            checks.part("rewards", agent.reward, None)
    task_set = build(checks.part("tasks", team.task.name, TaskSet), team.task.options, "marl.task.options")
    workflow = build(
        checks.part("workflows", team.workflow.name, Workflow), team.workflow.options, "marl.workflow.options"
    )
    checks.check_numbers(config)
    fit.check_samplers(samplers, str(marl["validation"]["sampler"]), algorithm, team, task_set)
    checks.check_batches(config, team)
    check_placement(config, team)
    checks.check_fixed(config, team)
    checks.check_sampling(config, team)
    fit.check_fit(samplers["sampler"], algorithm, team)
    tiny = checks.tiny_models(config, team, marl)
    tasks: dict[Split, list[Task]] = {
        split: checks.load_tasks(task_set, marl["task"], split, marl["run"]["seed"]) for split in ("train", "test")
    }
    checks.check_tasks(tasks, config)
    checks.rehearse(workflow, tasks["train"][0], team)
    checks.check_machine(config, team, folder)
    resolved = resolve(config, team)
    check_schedule(resolved, team, algorithm)
    fit.check_reference(resolved, team)
    return Plan(config, resolved, team, tasks, tiny, tiny_critic(config, team), folder)


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
    tiny = {f"marl.policies.{name}.model.path": spec for name, spec in plan.tiny.items()}
    if plan.tiny_critic is not None:
        tiny["marl.critic.model.path"] = plan.tiny_critic
    if tiny:
        with display.task("making tiny models") as advance:
            paths = ensure_all(list(tiny.values()), progress=advance)
        for key, path in zip(tiny, paths, strict=True):
            OmegaConf.update(plan.config, key, str(path), force_add=True)
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
