"""Everything that can be wrong is found here, before work starts; then the run directory is made."""

from __future__ import annotations

import dataclasses
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
from marl_verl.config.resolve import resolve
from marl_verl.episode import Workflow
from marl_verl.errors import MarlError, missing
from marl_verl.models.tiny import TinyModel, ensure_all
from marl_verl.options import build
from marl_verl.parts import algorithm_of
from marl_verl.sampling import Sampler
from marl_verl.tasks.base import Split, Task, TaskSet
from marl_verl.tasks.files import write_tasks
from marl_verl.team import Team, read_team
from marl_verl.trainer import checkpoint

COMPOSED = "composed.yaml"
"""The config before policies are filled in and interpolations resolved: what a continued run starts from, so that an
override of it reaches everything that depends on it."""


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
            model = checks.model_of(policy, self.config).get("path")
            what = f"tiny model, {self.tiny[name].steps} warm-up steps" if name in self.tiny else str(model)
            lines.append(f"  policy  {name}: {what}{', frozen' if policy.frozen else ''}")
        settings = ", ".join(f"{name}={value}" for name, value in algorithm_of(self.team).options().items())
        counts = f"{len(self.tasks['train'])} training, {len(self.tasks['test'])} held-out"
        lines += [
            f"  task    {self.team.task.name} ({counts}), workflow {self.team.workflow.name}",
            f"  learn   {self.team.algorithm.name}: {settings}",
            f"  sample  {_sampling(algorithm_of(self.team).sampler, marl.sampler)}",
            f"  test    greedily, and by {_sampling(marl.validation.sampler, marl.validation)}",
            f"  steps   {self.config.trainer.total_training_steps} of {self.config.data.train_batch_size} tasks, seed "
            f"{marl.run.seed}",
        ]
        return "\n".join(["team", *lines])


def _sampling(name: str, section: DictConfig) -> str:
    """A sampler with its sessions and options, those too that nobody set."""
    sampler = build(checks.part("samplers", name, Sampler), OmegaConf.to_container(section.options), "options")  # type: ignore[arg-type]
    options = {"sessions": section.sessions, **dataclasses.asdict(sampler)}  # type: ignore[call-overload]
    return f"{name}: " + ", ".join(f"{option}={value}" for option, value in options.items())


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
    team = checkpoint.read(saved[-1])
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
    resolve(config, team)
    return Plan(config, team, tasks, tiny, folder)


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
