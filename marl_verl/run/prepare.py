"""Check a run's recipe, parts and tasks before any process starts, and make its run directory."""

import itertools
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from marl_verl import plugins
from marl_verl.algo.algorithms import Algorithm
from marl_verl.algo.sampling import Sampler
from marl_verl.config import checks, fit
from marl_verl.config.compose import choose_backend, compose, with_overrides
from marl_verl.config.parts import algorithm_of, samplers_of
from marl_verl.config.placement import check_placement
from marl_verl.config.policy_models import check_templates, made_models, pretrained_models
from marl_verl.config.resolve import made_critic, resolve
from marl_verl.config.stored import COMPOSED, as_yaml, check_run, marl_section, read_config
from marl_verl.config.variants import run_name
from marl_verl.episode import Workflow
from marl_verl.errors import MarlError, user_error
from marl_verl.extensions import check_run_options, extension, names, required, use_run_options
from marl_verl.files import read_json, write_json
from marl_verl.models.sources import ModelToMake
from marl_verl.options import build
from marl_verl.plugins import one_file
from marl_verl.run.checkpoint import folders
from marl_verl.run.checkpoint.team import check_plugins, check_same
from marl_verl.run.progress import Display
from marl_verl.run.rehearsal import TRIED, drop_overlong, rehearse_split
from marl_verl.run.run_dir import STARTS, machine, packages, removed_on_error
from marl_verl.run.trackers import check_trackers
from marl_verl.tasks.base import SPLITS, Split, Task, TaskSet, read_tasks, write_tasks
from marl_verl.team import TeamConfig, read_team

DATA: dict[Split, Path] = {split: Path("data") / f"{split}.jsonl" for split in SPLITS}
"""The files of tasks in a run directory."""


@dataclass
class Plan:
    """A checked run: config, team, tasks, and the models to make."""

    config: DictConfig  # composed, not resolved; without the paths of models to make
    resolved: DictConfig  # the trainer's config, except for those paths
    team: TeamConfig
    tasks: dict[Split, list[Task]]
    made: dict[str, ModelToMake]  # policy -> the model to make
    made_critic: tuple[str, ModelToMake] | None  # with its key in the section of the critic
    folder: Path  # exists only for a resumed run
    resumed: bool = False
    files: tuple[one_file.PluginFile, ...] = ()
    notes: tuple[str, ...] = ()  # notes to print before the run starts
    facts: dict[str, Sequence[object]] = field(default_factory=dict)  # of distributions: lines of the summary, by name
    arguments: tuple[str, ...] = ()  # of `marl-verl train`


def plan_run(recipe: Path, overrides: list[str], plugin_files: Sequence[Path] = (), dry_run: bool = False) -> Plan:
    """Read and check a recipe, with plugin files in addition to its own. Writes nothing. MarlError if it is invalid.
    A dry run leaves out the tasks that would be downloaded, and the checks that need them."""
    config = compose(recipe, overrides)
    OmegaConf.update(config, "marl.run.recipe", str(recipe), force_add=True)
    config.marl.run.backend = choose_backend(config, overrides)
    plugin_paths = config.marl.plugins or ()
    if isinstance(plugin_paths, str):
        plugin_paths = [plugin_paths]
    paths = [recipe.resolve().parent / Path(path).expanduser() for path in plugin_paths]
    files = one_file.read_files([*paths, *plugin_files])
    config.marl.plugins = [file.path for file in files]
    if config.marl.task.reward is not None:
        files += required("task", "reward", "marl.task.reward", "scripts")(config, recipe.resolve().parent)
    plugins.use_files(files)
    plan = _check(config, _new_folder(config, run_name(recipe)), dry_run)
    plan.files = tuple(files)
    plan.arguments = (str(recipe), *overrides, *(f"--plugin={file}" for file in plugin_files))
    return plan


def continue_run(folder: Path, overrides: list[str], plugin_files: Sequence[Path] = ()) -> Plan:
    """Read and check the config of an earlier run, to resume it from its newest complete checkpoint.

    The run's copies of training tasks and plugin files are used; given plugin files must have the same content.
    MarlError if team, algorithm or plugins have changed.
    """
    check_run(folder, COMPOSED, "config.yaml")
    saved = folders.intact(folders.choose(folder))
    folders.check_pickles(saved)
    stored = folders.read(saved)
    files = one_file.files_of_run(folder, plugin_files)
    plugins.use_files(files)
    check_plugins(stored["plugins"], saved)  # first: the config cannot be checked without them
    config = read_config(folder / COMPOSED)
    originals = config.marl.plugins
    config = with_overrides(config, overrides)
    config.marl.plugins = originals
    OmegaConf.update(config, "marl.run.backend", config.marl.run.get("backend") or "verl", force_add=True)
    config.trainer.resume_mode = "auto"
    config.trainer.val_before_train = False  # the first run has done it
    plan = _check(config, folder, resumed=True)
    plan.files = tuple(files)
    plan.arguments = ("--resume", str(folder), *overrides, *(f"--plugin={file}" for file in plugin_files))
    if files:
        plan.notes += (f"plugin files are the run's copies in '{folder / one_file.COPIES}'; a new run uses others",)
    check_same(stored, plan.resolved, saved)
    for past in plan.team.past.values():
        extension("policy", past.kind).check(folder, saved, {past.of})
    if config.trainer.total_training_steps <= stored["step"]:
        raise MarlError(
            f"run '{folder}' is at step {stored['step']} already, and trainer.total_training_steps="
            f"{config.trainer.total_training_steps}. To continue training, set it above {stored['step']}."
        )
    return plan


def check_settings(config: DictConfig) -> tuple[TeamConfig, Algorithm, Sampler, Workflow, TaskSet]:
    """Check all values of a config, without tasks and models, in milliseconds. MarlError for the first invalid one.

    Returns what it names: team, algorithm, sampler, workflow and task set.
    """
    marl = marl_section(config)
    team = read_team(marl)
    algorithm = algorithm_of(team)
    samplers = samplers_of(algorithm, marl)
    workflow, task_set = check_team(config, team)
    fit.check_samplers(samplers, team, task_set, workflow)
    fit.check_sides(samplers, algorithm, team, task_set)
    check_trackers(config)
    fit.check_fit(samplers["sampler"][1], algorithm, team, workflow.replayable)
    return team, algorithm, samplers["sampler"][1], workflow, task_set


def check_team(config: DictConfig, team: TeamConfig) -> tuple[Workflow, TaskSet]:
    """Check what training and an evaluation have in common, and build the workflow and the task set. From then on this
    process scores as the run does (`use_run_options`).

    MarlError for an unregistered part or an invalid option.
    """
    run = marl_section(config)["run"]
    check_run_options(run)
    use_run_options(run)
    check_placement(config, team)
    checks.check_sampling(config, team)
    known = plugins.load()
    for agent in team.agents.values():
        if agent.reward is not None:
            known.get("rewards", agent.reward)
    task_set = build(known.get("tasks", team.task.name), team.task.options, "marl.task.options")
    return build(known.get("workflows", team.workflow.name), team.workflow.options, "marl.workflow.options"), task_set


def _check(config: DictConfig, folder: Path, dry_run: bool = False, resumed: bool = False) -> Plan:
    team, algorithm, sampler, workflow, task_set = check_settings(config)
    marl = marl_section(config)
    made = made_models(config, team, marl)
    generated = [split for split in SPLITS if marl["task"][f"{split}_file"] is None]
    # split -> what would be downloaded for its tasks, in words
    remote = {split: why for split in generated if dry_run and (why := task_set.loads(split)) is not None}
    few = {"train": int(config.data.train_batch_size), "test": TRIED} if dry_run and task_set.slow else {}
    kept: set[Split] = {"train"} if resumed else set()  # the saved position in the data is that in the run's tasks
    tasks: dict[Split, list[Task]] = {
        split: checks.load_tasks(task_set, marl["task"], split, marl["run"]["seed"], few.get(split))
        for split in SPLITS
        if split not in {*remote, *kept}
    }
    notes = [*drop_overlong(config, team, tasks, made)]
    tasks = {split: read_tasks(folder / DATA[split]) for split in kept} | tasks
    if not remote:
        with user_error("; ".join(notes)):  # there may be too few because some were dropped
            checks.check_tasks(tasks, config, task_set, generated if dry_run and not task_set.slow else ())
    notes += [f"{split} tasks are {why}: a dry run loads and checks none" for split, why in remote.items()]
    notes += [f"a dry run generates {count} {split} tasks, since each takes long" for split, count in few.items()]
    counted = "train" in tasks and (not few or marl["task"]["train_file"] is not None)
    size = len(tasks["train"]) if counted else marl["task"]["train_size"] or checks.SIZES["train"]
    checks.set_steps(config, size, resumed)
    rehearsed = [rehearse_split(workflow, split, team, task_set, algorithm) for split in tasks.values()]
    moves = rehearsed[0] if rehearsed else ()
    explored = {agent.name for agent in team.agents.values() if agent.policy in team.explored}
    trained = [[act.role for act in acts if act.role in explored] for acts in moves]
    if (doubt := sampler.warning(task_set, [*filter(None, trained)])) is not None:
        notes.append(f"warning: marl.sampler.options: {doubt}")
    agents = tuple(tuple(dict.fromkeys(act.role for act in acts)) for acts in moves)
    synthetic = fit.SyntheticTeam(sampler, algorithm, team, agents)
    fit.check_advantage(synthetic)
    checks.check_machine(folder)
    resolved = resolve(config, team)
    fit.check_schedule(resolved, team, algorithm, synthetic)
    checks.check_engine(resolved, team)
    if not resumed:
        checks.check_read(resolved, team)
    seen = [act for acts in moves for act in acts]
    check_templates(resolved, team, seen, made)
    checks.check_with_verl(config, resolved)
    rows = Counter(turn.policy for turn in synthetic.turns(0))
    batch = {name: count * int(config.data.train_batch_size) for name, count in rows.items()}
    facts = {name: extension("plan", name)(resolved, team, made, batch) for name in names("plan")}
    critic = made_critic(config, team)
    return Plan(config, resolved, team, tasks, made, critic, folder, resumed, notes=tuple(notes), facts=facts)


def _new_folder(config: DictConfig, stem: str) -> Path:
    """The run directory of a new run. MarlError for a name that is taken."""
    parent, name = Path(str(config.marl.run.dir)).expanduser(), config.marl.run.name
    if name is None:
        numbered = (parent / f"{stem}-{number}" for number in itertools.count(1))
        return next(folder for folder in numbered if not os.path.lexists(folder))
    folder = parent / str(name)
    if os.path.lexists(folder):
        raise MarlError(f"run directory '{folder}' exists: choose another marl.run.name, or continue it with --resume")
    return folder


def _reserve(plan: Plan) -> None:
    """Make the empty, private run directory of a new run. If another run took its number meanwhile, use the next one.
    MarlError if a run of the given name was started meanwhile."""
    plan.folder.parent.mkdir(parents=True, exist_ok=True)
    while True:
        try:
            return plan.folder.mkdir(mode=0o700)
        except FileExistsError:
            plan.folder = _new_folder(plan.config, plan.folder.name.rpartition("-")[0])


def make_run_directory(plan: Plan, display: Display) -> Path:
    """Make the models, then the run directory with all files that the trainer reads. One that fails is removed."""
    plugins.use_files(plan.files)
    composed = as_yaml(plan.config)
    wanted: dict[str, dict[str, ModelToMake]] = {}  # key of a source -> where the path is set -> model
    for name, policy in plan.team.policies.items():
        if policy.made is not None and policy.past is None:
            wanted.setdefault(policy.made.name, {})[f"marl.policies.{name}.model.path"] = plan.made[name]
    if plan.made_critic is not None:
        wanted.setdefault(plan.made_critic[0], {})["marl.critic.model.path"] = plan.made_critic[1]
    for key, models in wanted.items():
        with display.task(f"making {key} models") as advance:
            paths = extension("model", key).make(list(models.values()), advance)
        for where, path in zip(models, paths, strict=True):
            OmegaConf.update(plan.config, where, str(path), force_add=True)
    for name, model in pretrained_models(plan.config, plan.team).items():
        if not model.folder().is_dir():
            with display.task(f"converting {name}"):
                model.fetch()
    if not plan.resumed:
        _reserve(plan)
    with removed_on_error(None if plan.resumed else plan.folder):
        _write(plan, composed)
    plugins.use_files(one_file.files_of_run(plan.folder.resolve()))
    return plan.folder


def _write(plan: Plan, composed: str) -> None:
    """Write the files of a run directory to a temporary folder, then copy them."""
    folder = plan.folder.resolve()
    OmegaConf.update(plan.config, "marl.run.folder", str(folder), force_add=True)
    if plan.config.trainer.experiment_name is None:
        plan.config.trainer.experiment_name = folder.name
    plan.config.data.train_files, plan.config.data.val_files = str(folder / DATA["train"]), str(folder / DATA["test"])
    if plan.config.data.get("val_batch_size") is None:
        plan.config.data.val_batch_size = len(plan.tasks["test"])
    resolved = resolve(plan.config, read_team(marl_section(plan.config)))
    with tempfile.TemporaryDirectory(prefix=".new-run-", dir=folder.parent) as temporary:
        new = Path(temporary)
        for split, tasks in plan.tasks.items():
            write_tasks(tasks, new / DATA[split])
        (new / COMPOSED).write_text(composed, encoding="utf-8")
        (new / "config.yaml").write_text(as_yaml(resolved), encoding="utf-8")
        write_json(new / "plugins.json", plugins.load().describe(content=True))
        earlier = folder / STARTS
        starts = read_json(earlier) if earlier.is_file() else []
        start = {"arguments": plan.arguments, "machine": machine(), "packages": packages()}
        write_json(new / STARTS, [*starts, start])
        if not plan.resumed:
            one_file.copy_files(plan.files, new)
        shutil.copytree(new, folder, dirs_exist_ok=True)
