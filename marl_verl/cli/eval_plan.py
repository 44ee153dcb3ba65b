"""An evaluation with everything checked: what `marl-verl eval` plays, before anything is started or written."""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from marl_verl import plugins
from marl_verl.cli import checks
from marl_verl.cli.prepare import COMPOSED
from marl_verl.config.compose import parse_overrides
from marl_verl.config.resolve import resolve
from marl_verl.episode import Workflow
from marl_verl.errors import MarlError, missing
from marl_verl.evaluation.cast import Part, acting, cast, parse_swap
from marl_verl.evaluation.config import check_overrides, evaluation_config, read_config
from marl_verl.evaluation.lengths import check_lengths
from marl_verl.evaluation.request import MODELS, Request
from marl_verl.evaluation.weights import began_with, chosen_step, ready, trained
from marl_verl.options import build
from marl_verl.tasks.base import Task, TaskSet
from marl_verl.tasks.files import read_tasks, write_tasks
from marl_verl.team import Team, read_team
from marl_verl.trainer.export import Source
from marl_verl.trainer.placement import check_placement

FOLDER = "evaluations"
"""Of a run: NAME.json with the numbers, NAME.jsonl with episodes, NAME.log."""

TASKS = "data/test.jsonl"
SESSIONS = 8
KS = (1, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Plan:
    """A checked evaluation.

    Attributes:
        run: the run directory.
        folder: where it is played, below the run; it does not exist yet.
        config: resolved.
        team: as it is evaluated, every policy frozen.
        settings: what the user asked for, as it stands in the result: two evaluations with the same are the same.
    """

    run: Path
    folder: Path
    config: DictConfig
    team: Team
    tasks: list[Task]
    request: Request
    settings: dict[str, Any]

    def write(self) -> None:
        """Make the folder, with everything that the process which plays reads."""
        write_tasks(self.tasks, self.folder / TASKS)
        OmegaConf.save(self.config, self.folder / "config.yaml")
        self.request.write(self.folder)


@dataclass
class Models:
    """What the servers of each policy of an evaluation read.

    Attributes:
        paths: policy -> folder, or name on the hub.
        tokenizers: policy -> the same, of its tokenizer.
        exports: policies whose folder has to be made first, of what.
    """

    paths: dict[str, str] = field(default_factory=dict)
    tokenizers: dict[str, str] = field(default_factory=dict)
    exports: dict[str, Source] = field(default_factory=dict)


def plan(options: argparse.Namespace) -> Plan:
    """Check an evaluation as the command line names it.

    Raises:
        MarlError: whatever is wrong with it, the first thing found.
    """
    run = _run(options.run)
    sessions, ks = _sessions(options)
    check_overrides(options.overrides)
    plugins.load()
    composed = read_config(run / COMPOSED, options.overrides)
    marl = _marl(composed)
    team = read_team(marl)
    step = chosen_step(run, options.step)
    parts = cast(team, step, [parse_swap(pair) for pair in options.swap], options.untrained)
    folder = (run / FOLDER / f".playing-{uuid.uuid4().hex[:8]}").resolve()
    models = _models(run, folder, parts, step)
    config = evaluation_config(composed, parts, models.paths, max(1, sessions), options.seed)
    evaluated = read_team(_marl(config), allow_frozen=True)
    workflow = _parts(config, evaluated)
    tasks = _tasks(run, marl, team, options)
    checks.rehearse(workflow, tasks[0], evaluated)
    checks.check_machine(config, evaluated, run)
    check_placement(config, evaluated)
    OmegaConf.update(config, "marl.run.folder", str(folder), force_add=True)
    config.data.train_files = config.data.val_files = str(folder / TASKS)
    config.data.val_batch_size = len(tasks)
    resolved = resolve(config, evaluated)
    check_lengths(run, resolved, team.agents, parts, models.tokenizers)
    seed = int(config.marl.run.seed)
    settings = {
        "run": run.resolve().name,
        "step": step,
        "tasks": len(tasks),
        "sessions": sessions,
        "k": list(ks),
        "swap": [list(parse_swap(pair)) for pair in options.swap],
        "untrained": list(dict.fromkeys(options.untrained)),
        "seed": seed,
        "overrides": list(options.overrides),
    }
    request = Request(step, sessions, ks, seed, parts, models.exports)
    return Plan(run, folder, resolved, evaluated, tasks, request, settings)


def _run(folder: Path | None) -> Path:
    if folder is None:
        raise MarlError("which run? e.g. marl-verl eval runs/NAME")
    if not (folder / COMPOSED).is_file() or not (folder / "config.yaml").is_file():
        raise missing("run in", folder, [path.parent for path in folder.parent.glob(f"*/{COMPOSED}")])
    return folder


def _sessions(options: argparse.Namespace) -> tuple[int, tuple[int, ...]]:
    """How many sessions of each task, and the k of pass@k."""
    if options.greedy_only:
        for option, given in (("--sessions", options.sessions), ("--k", options.k)):
            if given is not None:
                raise MarlError(f"{option} is of the sampled pass, and --greedy-only leaves that out: give one of them")
        return 0, ()
    sessions = SESSIONS if options.sessions is None else options.sessions
    if sessions < 1:
        raise MarlError(f"--sessions must be a whole number, 1 or more, got {sessions}")
    if options.k is None:
        return sessions, tuple(sorted({k for k in KS if k < sessions} | {sessions}))
    ks = tuple(sorted({_number(word) for word in options.k.split(",")}))
    if ks[-1] > sessions:
        raise MarlError(f"pass@{ks[-1]} needs at least {ks[-1]} sessions a task, there are {sessions}: give --sessions")
    return sessions, ks


def _number(word: str) -> int:
    if not word.strip().isdecimal() or int(word) < 1:
        raise MarlError(f"--k must be whole numbers, 1 or more, e.g. --k 1,4,8, got '{word}'")
    return int(word)


def _marl(config: DictConfig) -> dict[str, Any]:
    try:
        marl: dict[str, Any] = OmegaConf.to_container(config.marl, resolve=True)  # type: ignore[assignment]
    except OmegaConfBaseException as error:
        raise MarlError(f"the marl section cannot be resolved: {' '.join(str(error).split())}") from error
    return marl


def _models(run: Path, folder: Path, parts: dict[str, Part], step: int) -> Models:
    """Find the weights of every policy that somebody acts with; one outside has none."""
    known, found = read_config(run / "config.yaml"), Models()
    for name, part in acting(parts).items():
        if part.weights == "outside":
            continue
        if part.weights != "trained":
            found.paths[name] = found.tokenizers[name] = began_with(known, part)
            continue
        source = trained(run, known, part.source, step)
        found.tokenizers[name] = str((source.folder / "huggingface").resolve())
        path = ready(source)
        if path is None:
            found.exports[name] = source
        found.paths[name] = str(folder / MODELS / name if path is None else path)
    return found


def _parts(config: DictConfig, team: Team) -> Workflow:
    """Check parts, options and numbers, as before a training."""
    task_set = checks.part("tasks", team.task.name, TaskSet)
    build(task_set, team.task.options, "marl.task.options")
    workflow = build(
        checks.part("workflows", team.workflow.name, Workflow), team.workflow.options, "marl.workflow.options"
    )
    for agent in team.agents.values():
        if agent.reward is not None:
            checks.part("rewards", agent.reward, None)
    checks.check_numbers(config)
    checks.check_fixed(config, team)
    checks.check_sampling(config, team)
    assert isinstance(workflow, Workflow)
    return workflow


def _tasks(run: Path, marl: dict[str, Any], team: Team, options: argparse.Namespace) -> list[Task]:
    """The run's held-out tasks, or others where overrides of `marl.task` ask for them; none was trained on."""
    if _changes_tasks(options.overrides):
        task_set = build(checks.part("tasks", team.task.name, TaskSet), team.task.options, "marl.task.options")
        tasks = checks.load_tasks(task_set, marl["task"], "test", marl["run"]["seed"])
        trained = {task.id for task in read_tasks(run / "data" / "train.jsonl")}
        if both := trained & {task.id for task in tasks}:
            raise MarlError(f"{len(both)} of the tasks were trained on, e.g. '{min(both)}': they are not held-out")
    else:
        tasks = read_tasks(run / "data" / "test.jsonl")
    if not tasks:
        raise MarlError("the task set made no test tasks")
    wanted = len(tasks) if options.tasks is None else options.tasks
    if not 1 <= wanted <= len(tasks):
        raise MarlError(
            f"--tasks must be between 1 and {len(tasks)}, the number of held-out tasks, got {wanted}: "
            "marl.task.test_size=N makes others"
        )
    return tasks[:wanted]


def _changes_tasks(overrides: Sequence[str]) -> bool:
    return any(change.key_or_group.startswith("marl.task") for change in parse_overrides(overrides))
