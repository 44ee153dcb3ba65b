"""Check an evaluation (`marl-verl eval`) before any process is started or file is written."""

import copy
import dataclasses
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from marl_verl import plugins
from marl_verl.config import checks
from marl_verl.config.compose import parse_overrides, with_overrides
from marl_verl.config.policy_models import check_scripts
from marl_verl.config.resolve import resolve
from marl_verl.config.stored import COMPOSED, check_run, marl_section, read_config
from marl_verl.errors import MarlError, check, shown
from marl_verl.evaluation import request as asked
from marl_verl.extensions import league, names
from marl_verl.inspect.run_files import load_run
from marl_verl.plugins import one_file
from marl_verl.run.checkpoint.export import Source
from marl_verl.run.prepare import check_team
from marl_verl.run.rehearsal import rehearse
from marl_verl.tasks.base import Task, TaskSet, read_tasks, trained, write_tasks
from marl_verl.team import TeamConfig, read_team

FOLDER = "evaluations"
"""In a run directory: NAME.json with the numbers, NAME.jsonl with episodes, NAME.log."""

TASKS = "data/test.jsonl"
EPISODES = 8
AT_ONCE = 256
"""Maximum episodes in flight: an act that waits for a server longer than `marl.rollout.act_seconds` fails."""
KS = (1, 4, 8, 16, 32, 64)

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
class Options:
    """The arguments of `marl_verl.evaluate`, which describes them."""

    step: int | None = None
    tasks: int | None = None
    episodes: int | None = None
    k: Sequence[int] | None = None
    swap: Sequence[asked.Swap] = ()
    untrained: Sequence[str] = ()
    seed: int | None = None
    greedy_only: bool = False
    at_once: int = AT_ONCE
    cross_play: bool | str = False
    steps: Sequence[int] | None = None
    edit: tuple[str, str, str] | None = None

    @property
    def sampled(self) -> int:
        """The number of sampled episodes of each task."""
        if self.greedy_only or self.episodes is not None:
            return 0 if self.greedy_only else self.episodes or 0
        return 1 if self.edit else EPISODES

    @property
    def ks(self) -> tuple[int, ...]:
        """The values of k, ascending. MarlError: not from 1 to the number of episodes."""
        if self.edit or not self.sampled:
            return ()
        ks = sorted(set(self.k or (*(k for k in KS if k < self.sampled), self.sampled)))
        if ks[0] < 1 or ks[-1] > self.sampled:
            raise MarlError(f"--k must be whole numbers from 1 to --episodes ({self.sampled}), got {self.k}")
        return tuple(ks)


@dataclass(frozen=True)
class EvaluationPlan:
    """A checked evaluation. `folder` is temporary and does not exist yet, `settings` are stored in the result."""

    run: Path
    folder: Path
    config: DictConfig
    tasks: list[Task]
    request: asked.Request
    settings: dict[str, Any]
    files: Sequence[one_file.PluginFile]

    def write(self) -> None:
        """Create the folder with all files that the evaluation's process reads."""
        write_tasks(self.tasks, self.folder / TASKS)
        OmegaConf.save(self.config, self.folder / "config.yaml")
        self.request.write(self.folder)
        one_file.copy_files(self.files, self.folder)


@check
def check_options(options: Options) -> Iterator[str]:
    """Refuse options without an effect, which the result would name nevertheless."""
    for name in ("step", "swap", "untrained", "k", "greedy_only", "edit") if options.cross_play else ("steps",):
        if getattr(options, name) != getattr(Options, name):
            without = "with" if options.cross_play else "without"
            yield f"--{name.replace('_', '-')} has no effect {without} --cross-play or --partner: leave it out"
    if options.tasks is not None and options.tasks < 1:
        yield f"--tasks must be 1 or more, got {options.tasks}"


def plan(run: Path, overrides: Sequence[str], options: Options, plugin_files: Sequence[Path] = ()) -> EvaluationPlan:
    """Check an evaluation without writing files. Errors as in `marl_verl.evaluate`."""
    check_run(run, COMPOSED, "config.yaml")
    check_overrides(overrides)
    check_options(options)
    files = one_file.files_of_run(run, plugin_files)
    plugins.use_files(files)
    composed = with_overrides(read_config(run / COMPOSED), overrides, trained=False)
    for name, policy in composed.marl.policies.items():  # an override may make a trained policy external
        if policy and (policy.get("script") or policy.get("endpoint")):
            composed.marl.policies[name] = {key: policy[key] for key in ("script", "endpoint", "stop") if key in policy}
    marl = marl_section(composed)
    team = read_team(marl, evaluation=True)
    task, request = _request(run, team, options)
    folder = (run / FOLDER / f".playing-{uuid.uuid4().hex[:8]}").resolve()
    models = asked.find_models(run, request.policies)
    exports = {name: model for name, model in models.items() if isinstance(model, Source)}
    paths = {name: str(folder / asked.MODELS / name if name in exports else model) for name, model in models.items()}
    config = evaluation_config(composed, request.assignments, request.policies, paths, options.sampled, options.seed)
    evaluated = read_team(marl_section(config), evaluation=True)
    workflow, task_set = check_team(config, evaluated)
    if request.sides and not task_set.sides:
        raise MarlError(f"--cross-play needs outcomes of sides, but task set '{team.task.name}' scores the whole team")
    check_scripts(config, evaluated, training=False)
    tasks = _tasks(run, marl, task_set, overrides, options.tasks) if task is None else [task]
    rehearse(workflow, tasks[0], evaluated)
    checks.check_machine(run)
    OmegaConf.update(config, "marl.run.folder", str(folder), force_add=True)
    config.data.train_files = config.data.val_files = str(folder / TASKS)
    config.data.val_batch_size = len(tasks)
    request = dataclasses.replace(request, exports=exports, seed=int(config.marl.run.seed))
    settings = {**dataclasses.asdict(options), "run": run.resolve().name, "step": request.step, "seed": request.seed}
    settings |= {"tasks": len(tasks), "episodes": request.episodes, "k": request.ks, "overrides": list(overrides)}
    return EvaluationPlan(run, folder, resolve(config, evaluated), tasks, request, settings, files)


def _request(run: Path, team: TeamConfig, options: Options) -> tuple[Task | None, asked.Request]:
    """(the task of an edited episode, the request): who acts with which policy."""
    counts: dict[str, Any] = {"episodes": options.sampled, "ks": options.ks, "at_once": options.at_once}
    task, step = None, options.step
    if options.cross_play:
        partner = options.cross_play if isinstance(options.cross_play, str) else None
        cross_play = league("unknown option '--cross-play'")
        request = cross_play.pair(team, cross_play.chosen_steps(run, options.steps), partner)
        return None, dataclasses.replace(request, **counts)
    if options.edit:
        league("unknown option '--edit'")
        task, at, rows = asked.edited_rows(run, *options.edit, sampled=options.sampled > 1)
        step = at if step is None and at in (0, *load_run(run).checkpoints) else step
        counts |= {"rows": rows, "pairings": tuple(asked.Pairing("", row["uid"], {}) for row in rows)}
    step = asked.chosen_step(run, step)
    snapshots = asked.newest_snapshots(run, team, step)
    assignments = asked.assign(team, step, options.swap, options.untrained, snapshots)
    return task, asked.Request(step, assignments, asked.acting(assignments), **counts)


def _tasks(
    run: Path, marl: dict[str, Any], task_set: TaskSet, overrides: Sequence[str], wanted: int | None
) -> list[Task]:
    """The run's held-out tasks, or new ones if overrides change `marl.task`. MarlError for tasks of training."""
    if any(change.key_or_group.startswith("marl.task") for change in parse_overrides(overrides)):
        tasks = checks.load_tasks(task_set, marl["task"], "test", marl["run"]["seed"])
        files = marl["task"]["test_file"] is not None
        if both := trained(read_tasks(run / "data" / "train.jsonl"), tasks, files):
            label = f"{len(both)} of the tasks were used in training, e.g. '{both[0].id}', {shown(both[0].prompt)}"
            raise MarlError(f"{label}: they are not held-out")
    else:
        tasks = read_tasks(run / "data" / "test.jsonl")
    return tasks[:wanted]


def check_overrides(overrides: Sequence[str]) -> None:
    """Raise MarlError for an override that does not affect episodes, or for which there is a command option."""
    for line, change in zip(overrides, parse_overrides(overrides), strict=True):
        if not TAKEN.fullmatch(change.key_or_group):
            raise MarlError(f"'{line}' has no effect on an evaluation (docs/evaluation.md lists what has, and --help)")


def evaluation_config(
    config: DictConfig,
    assignments: Mapping[str, asked.Assignment],
    policies: Mapping[str, asked.Assignment],
    models: Mapping[str, str],
    episodes: int,
    seed: int | None,
) -> DictConfig:
    """The unresolved config of an evaluation, from the run's composed config, without other policies.

    `models`: policy of the evaluation -> the model for its servers. The others are those of a `Request`.
    """
    config = copy.deepcopy(config)
    OmegaConf.set_struct(config, False)
    marl = config.marl
    sections: Any = OmegaConf.to_container(marl.policies)
    marl.policies = {name: _policy(sections[used.source], models.get(name)) for name, used in policies.items()}
    for agent, assignment in assignments.items():
        marl.agents[agent].policy = assignment.policy
        for kind in names("policy"):
            marl.agents[agent].pop(kind, None)
    used = {policy.get("pool") for policy in marl.policies.values()}
    marl.pools = {name: size for name, size in (marl.get("pools") or {}).items() if name in used}
    marl.validation = {"sampler": "independent", "options": {"episodes": max(1, episodes)}}
    if seed is not None:
        marl.run.seed = seed
    marl.schedule.mode, marl.critic = "sync", {}
    config.trainer.resume_mode = "disable"
    return config


def _policy(section: Mapping[str, Any] | None, model: str | None) -> dict[str, Any]:
    """A policy's section, frozen and without LoRA (adapters are merged); an external endpoint is unchanged."""
    dropped = (*names("model"), "loss", "base", "frozen")
    policy = {key: value for key, value in (section or {}).items() if key not in dropped}
    if model is not None:
        kept = {key: value for key, value in (policy.get("model") or {}).items() if not key.startswith("lora")}
        policy.update(frozen=True, model={**kept, "path": model, "lora_rank": 0, "lora_adapter_path": None})
    return policy
