"""Evaluations: `plan` checks one before a process is started or a file is written, `launch` runs and stores it."""

import dataclasses
import itertools
import json
import re
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_verl_inspect.episodes import read_episodes
from marl_verl_inspect.export import Source
from omegaconf import DictConfig, OmegaConf

from marl_verl import plugins
from marl_verl.config import checks
from marl_verl.config.compose import parse_overrides, with_overrides
from marl_verl.config.policy_models import check_scripts
from marl_verl.config.resolve import resolve
from marl_verl.config.stored import COMPOSED, as_yaml, check_run, marl_section, read_config
from marl_verl.episode import Episode
from marl_verl.errors import MarlError, shown
from marl_verl.extensions import names
from marl_verl.files import read_bytes, read_json, write_json
from marl_verl.plugins import one_file
from marl_verl.run.prepare import check_team
from marl_verl.run.progress import Display
from marl_verl.run.reading import load_run
from marl_verl.run.rehearsal import rehearse
from marl_verl.run.run_dir import unpacked
from marl_verl.run.supervisor import start
from marl_verl.tasks.base import Task, TaskSet, read_tasks, trained, write_tasks
from marl_verl.team import TeamConfig, read_team
from marl_verl_evaluation import cross_play, weights
from marl_verl_evaluation.request import MODELS, RESULT, Options, Pairing, Request, check_options

FOLDER = "evaluations"  # in a run directory: NAME.json with the numbers, NAME.jsonl with episodes, NAME.log

TASKS = "data/test.jsonl"

TAKEN = re.compile(
    r"marl\.(task(?!\.reward)|workflow|rollout|pools)(\..+)?"
    r"|marl\.agents\.[^.]+\.(instructions|reward|sampling)(\..+)?"
    r"|marl\.policies\.[^.]+\.(rollout|endpoint|script|pool|stop|apply_chat_template_kwargs)(\..+)?"
    r"|marl\.run\.(journal_tokens|backend)"
    r"|actor_rollout_ref\.rollout\..+"
    r"|data\.(max_prompt_length|max_response_length|apply_chat_template_kwargs)(\..+)?"
    r"|trainer\.(n_gpus_per_node|nnodes)"
    r"|(ray_kwargs|transfer_queue)\..+"
)
"""Keys that affect episodes. Others are for training and would have no effect."""


@dataclass(frozen=True)
class EvaluationPlan:
    """A checked evaluation. `folder` is temporary and does not exist yet, `settings` are stored in the result."""

    run: Path
    folder: Path
    config: DictConfig
    tasks: list[Task]
    request: Request
    settings: dict[str, Any]
    files: Sequence[one_file.PluginFile]


def plan(run: Path, overrides: Sequence[str], options: Options, plugin_files: Sequence[Path] = ()) -> EvaluationPlan:
    """Check an evaluation without writing files. Errors as in `marl_verl.evaluate`."""
    check_run(run, COMPOSED, "config.yaml")
    for line, change in zip(overrides, parse_overrides(overrides), strict=True):
        if not TAKEN.fullmatch(change.key_or_group):
            raise MarlError(f"'{line}' has no effect on an evaluation (docs/evaluation.md lists what has, and --help)")
    check_options(options)
    files = one_file.files_of_run(run, plugin_files)
    plugins.use_files(files)
    composed = with_overrides(read_config(run / COMPOSED), overrides, trained=False)
    for name, policy in composed.marl.policies.items():  # an override may make a trained policy external
        if policy and (policy.get("script") or policy.get("endpoint")):
            composed.marl.policies[name] = {key: policy[key] for key in ("script", "endpoint", "stop") if key in policy}
    marl = marl_section(composed)
    team = read_team(marl, evaluation=True)
    request = _requested(run, team, options)
    folder = (run / FOLDER / f".playing-{uuid.uuid4().hex[:8]}").resolve()
    models = weights.find_models(run, request.policies)
    exports = {name: model for name, model in models.items() if isinstance(model, Source)}
    paths = {name: str(folder / MODELS / name if name in exports else model) for name, model in models.items()}
    config = evaluation_config(composed, request, paths, options.seed)
    evaluated = read_team(marl_section(config), evaluation=True)
    workflow, task_set = check_team(config, evaluated)
    if request.sides and not task_set.sides:
        raise MarlError(f"--cross-play needs outcomes of sides, but task set '{team.task.name}' scores the whole team")
    check_scripts(config, evaluated, training=False)
    edited = [Task(**json.loads(row["task"])) for row in request.rows[:1]]
    tasks = edited or _tasks(run, marl, task_set, overrides)[: options.tasks]
    rehearse(workflow, tasks[0], evaluated)
    checks.check_machine(run)
    OmegaConf.update(config, "marl.run.folder", str(folder), force_add=True)
    config.data.train_files = config.data.val_files = str(folder / TASKS)
    config.data.val_batch_size = len(tasks)
    request = dataclasses.replace(request, exports=exports)
    settings = {**dataclasses.asdict(options), "run": run.resolve().name, "step": request.step}
    settings |= {"seed": int(config.marl.run.seed), "tasks": len(tasks), "episodes": options.sampled}
    settings |= {"k": options.ks, "overrides": list(overrides)}
    return EvaluationPlan(run, folder, resolve(config, evaluated), tasks, request, settings, files)


def _requested(run: Path, team: TeamConfig, options: Options) -> Request:
    """Who acts with which policy."""
    if options.cross_play:
        partner = options.cross_play if isinstance(options.cross_play, str) else None
        request = cross_play.pair(team, cross_play.chosen_steps(run, options.steps), partner)
        return dataclasses.replace(request, options=options)
    step, rows = options.step, tuple[dict[str, Any], ...]()
    if options.edit:
        at, rows = cross_play.edited_rows(run, *options.edit, sampled=options.sampled > 1)
        step = at if step is None and at in (0, *load_run(run).checkpoints) else step
    step = weights.chosen_step(run, step)
    snapshots = weights.newest_snapshots(run, team, step)
    assignments = weights.assign(team, step, options.swap, options.untrained, snapshots)
    pairings = tuple(Pairing(assignments, column=row["uid"]) for row in rows) or (Pairing(assignments),)
    return Request(step, pairings, options, rows=rows)


def _tasks(run: Path, marl: dict[str, Any], task_set: TaskSet, overrides: Sequence[str]) -> list[Task]:
    """The run's held-out tasks, or new ones if overrides change `marl.task`. MarlError for tasks of training."""
    changed = {change.key_or_group for change in parse_overrides(overrides)}
    if any(key.startswith("marl.task") for key in changed):
        if changed & {"marl.task.test_file", "marl.task.test_size"} == {"marl.task.test_file"}:
            marl["task"]["test_size"] = None  # that of the run is of its own tasks
        tasks = checks.load_tasks(task_set, marl["task"], "test", marl["run"]["seed"])
        files = marl["task"]["test_file"] is not None
        if both := trained(read_tasks(run / "data" / "train.jsonl"), tasks, files):
            label = f"{len(both)} of the tasks were used in training, e.g. '{both[0].id}', {shown(both[0].prompt)}"
            raise MarlError(f"{label}: they are not held-out")
        return tasks
    return read_tasks(run / "data" / "test.jsonl")


def evaluation_config(config: DictConfig, request: Request, models: Mapping[str, str], seed: int | None) -> DictConfig:
    """Make the run's composed config the unresolved one of an evaluation, without other policies. `models`: policy of
    the evaluation -> the model for its servers."""
    marl = config.marl
    sections: Any = OmegaConf.to_container(marl.policies)
    marl.policies = {name: _policy(sections[used.source], models.get(name)) for name, used in request.policies.items()}
    for agent, assignment in request.assignments.items():
        marl.agents[agent].policy = assignment.policy
        for kind in names("policy"):
            marl.agents[agent].pop(kind, None)
    used = {policy.get("pool") for policy in marl.policies.values()}
    marl.pools = {name: size for name, size in (marl.get("pools") or {}).items() if name in used}
    marl.validation = {"sampler": "independent", "options": {"episodes": max(1, request.options.sampled)}}
    if seed is not None:
        marl.run.seed = seed
    marl.schedule.mode, marl.critic = "sync", {}
    config.trainer.resume_mode = "disable"
    return config


def _policy(section: Mapping[str, Any] | None, model: str | None) -> dict[str, Any]:
    """A policy's section, frozen and without LoRA (adapters are merged); an external endpoint is unchanged."""
    dropped = (*names("model"), "loss", "teacher", "base", "frozen")
    policy = {key: value for key, value in (section or {}).items() if key not in dropped}
    if model is not None:
        kept = {key: value for key, value in (policy.get("model") or {}).items() if not key.startswith("lora")}
        policy.update(frozen=True, model={**kept, "path": model, "lora_rank": 0, "lora_adapter_path": None})
    return policy


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation.

    Attributes:
        numbers: e.g. `numbers["success"]`, `numbers["pass@8"]`; docs/evaluation.md describes every key.
        file: NAME.json with the numbers, in `evaluations/` of the run, next to NAME.jsonl and NAME.log.
    """

    numbers: dict[str, Any]
    file: Path

    @property
    def success(self) -> float:
        """The share of held-out tasks that the team solves with greedy decoding, 0 to 1."""
        return float(self.numbers["success"])

    def episodes(self) -> Iterator[Episode]:
        """The stored episodes of the greedy pass (of `marl.rollout.keep_episodes` tasks), or all of an edit."""
        return iter(read_episodes(self.file.with_suffix(".jsonl")).episodes.values())


def launch(plan: EvaluationPlan, display: Display, lock: int | None = None) -> Evaluation:
    """Run an evaluation, whose log and episodes are kept even if it fails; if interrupted, no log. `lock`: the
    descriptor of `locked`."""
    display.print(_heading(plan))
    file = _free(plan)
    log = file.with_suffix(".log")
    log.unlink(missing_ok=True)
    try:
        write_tasks(plan.tasks, plan.folder / TASKS)
        (plan.folder / "config.yaml").write_text(as_yaml(plan.config), encoding="utf-8")
        plan.request.write(plan.folder)
        one_file.copy_files(plan.files, plan.folder)
        start("marl_verl_evaluation.run:evaluate", plan.folder, plan.config, display, lock, log)
        result = read_json(plan.folder / RESULT)
    except KeyboardInterrupt:
        log.unlink(missing_ok=True)
        raise
    finally:
        for episodes in (plan.folder / "episodes").glob("step_*.jsonl*"):  # a long file is compressed
            file.with_suffix(".jsonl").write_bytes(unpacked(read_bytes(episodes), f"'{episodes}'"))
        shutil.rmtree(plan.folder, ignore_errors=True)
    numbers = {**result, "seconds": time.time() - display.begun, "settings": plan.settings}
    write_json(file, numbers)
    return Evaluation(numbers, file)


def _free(plan: EvaluationPlan) -> Path:
    """The path of step_N.json, with swaps and untrained agents in the name, and a number if the name is taken."""
    evaluations = plan.run / FOLDER
    evaluations.mkdir(exist_ok=True)
    swaps = [f"swap-{first}-{second}" for first, second in plan.settings["swap"]]
    untrained = [f"untrained-{agent}" for agent in plan.settings["untrained"]]
    changed = "_".join([f"step_{plan.request.step}", *swaps, *untrained])
    base = f"{changed}_edit" if plan.request.rows else "cross-play" if plan.request.compares else changed
    numbered = itertools.chain([base], (f"{base}_{number}" for number in itertools.count(2)))
    return next(path for name in numbered if not (path := evaluations / f"{name}.json").exists())


def _heading(plan: EvaluationPlan) -> str:
    request, tasks, seed = plan.request, f"{len(plan.tasks)} held-out tasks", plan.settings["seed"]
    sampled = f"{request.options.sampled} sampled episodes each" if request.options.sampled else "no sampled episodes"
    if request.compares and not request.rows:
        pairs = f"{len(request.pairings)} pairs, each: {tasks}, {sampled}, seed {seed}"
        return f"cross-play of run {plan.run}: {pairs}"
    lines = [f"evaluation of run {plan.run}, step {request.step}"]
    for agent, assignment in request.assignments.items():
        lines.append(f"  agent   {agent} acts with policy {assignment.source}, {assignment.describe()}")
    if not request.rows:
        lines.append(f"  test    {tasks}, greedily, and {sampled}, seed {seed}")
    return "\n".join(lines)
