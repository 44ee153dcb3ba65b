"""Check an evaluation (`marl-verl eval`) before any process is started or file is written."""

import copy
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from marl_verl import plugins
from marl_verl.config import checks
from marl_verl.config.compose import parse_overrides, with_overrides
from marl_verl.config.policy_models import check_scripts
from marl_verl.config.resolve import resolve
from marl_verl.config.stored import COMPOSED, check_run, marl_section, read_config
from marl_verl.errors import MarlError, shown
from marl_verl.evaluation import request as asked
from marl_verl.evaluation.edit import edited_rows
from marl_verl.extensions import league, names
from marl_verl.inspect.run_files import load_run
from marl_verl.plugins import one_file
from marl_verl.run.checkpoint.export import Source
from marl_verl.run.prepare import check_team
from marl_verl.run.rehearsal import rehearse
from marl_verl.tasks.base import TaskSet
from marl_verl.tasks.task import Task
from marl_verl.tasks.task_files import read_tasks, trained, write_tasks
from marl_verl.team import read_team

FOLDER = "evaluations"
"""In a run directory: NAME.json with the numbers, NAME.jsonl with episodes, NAME.log."""

TASKS = "data/test.jsonl"
EPISODES = 8
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
class EvaluationPlan:
    """A checked evaluation.

    Attributes:
        folder: the evaluation's temporary folder below the run directory; it does not exist yet.
        config: the resolved config.
        settings: the arguments, stored in the result.
        files: plugin files: the run's copies, and those given by the user.
    """

    run: Path
    folder: Path
    config: DictConfig
    tasks: list[Task]
    request: asked.Request
    settings: dict[str, Any]
    files: tuple[one_file.PluginFile, ...]

    def write(self) -> None:
        """Create the folder with all files that the evaluation's process reads."""
        write_tasks(self.tasks, self.folder / TASKS)
        OmegaConf.save(self.config, self.folder / "config.yaml")
        self.request.write(self.folder)
        one_file.copy_files(self.files, self.folder)


def plan(
    run: Path,
    overrides: Sequence[str] = (),
    *,
    step: int | None = None,
    tasks: int | None = None,
    episodes: int | None = None,
    k: str | Sequence[int] | None = None,
    swap: Iterable[str | asked.Swap] = (),
    untrained: Sequence[str] = (),
    seed: int | None = None,
    greedy_only: bool = False,
    at_once: int | None = None,
    cross_play: bool | str | None = False,
    steps: str | Sequence[int] | None = None,
    edit: tuple[str, str, str] | None = None,
    plugin_files: Sequence[Path] = (),
) -> EvaluationPlan:
    """Check an evaluation without writing files. Arguments and errors as in `marl_verl.evaluate`."""
    check_run(run, COMPOSED, "config.yaml")
    swap, partner = list(swap), cross_play if isinstance(cross_play, str) else None
    if steps is not None and not cross_play:
        raise MarlError("--steps is an option of --cross-play and --partner. Give --step N to evaluate one step.")
    one_team = {"--step": step, "--swap": swap, "--untrained": untrained, "--k": k, "--greedy-only": greedy_only}
    one_team |= {"--edit": edit}
    for option, value in one_team.items():
        if cross_play and value not in (None, False, [], ()):
            why = "it plays sampled episodes of pairs of steps"
            raise MarlError(f"--{'partner' if partner else 'cross-play'} and {option} are incompatible: {why}")
    for option, number in (("--at-once", at_once), ("--episodes", None if greedy_only else episodes)):
        if number is not None and number < 1:
            raise MarlError(f"{option} must be a whole number >= 1, got {number}")
    episodes = 0 if greedy_only else episodes or (1 if edit else EPISODES)
    ks = () if greedy_only or edit else _episodes(episodes, k)
    check_overrides(overrides)
    files = one_file.files_of_run(run, plugin_files)
    plugins.use_files(files)
    composed = with_overrides(read_config(run / COMPOSED), overrides, trained=False)
    for name, policy in composed.marl.policies.items():  # an override may make a trained policy external
        if policy and (policy.get("script") or policy.get("endpoint")):
            composed.marl.policies[name] = {key: policy[key] for key in ("script", "endpoint", "stop") if key in policy}
    marl = marl_section(composed)
    team = read_team(marl, evaluation=True)
    if edit:
        league("edit", "unknown option '--edit'")
        edited_task, at, rows = edited_rows(run, *edit, sampled=episodes > 1)
        step = at if step is None and at in (0, *load_run(run).checkpoints) else step
    playing = league("cross-play", "unknown option '--cross-play'") if cross_play else None
    chosen = playing.chosen_steps(run, steps) if playing else (asked.chosen_step(run, step),)
    swaps = [asked.parse_swap(pair) if isinstance(pair, str) else pair for pair in swap]
    step = chosen[-1]
    crossed = playing.pair(team, chosen, partner) if playing else None
    if crossed:
        assignments, policies = crossed.first, crossed.policies
    else:
        assignments = asked.assign(team, step, swaps, untrained, asked.newest_snapshots(run, team, step))
        policies = asked.acting(assignments)
    folder = (run / FOLDER / f".playing-{uuid.uuid4().hex[:8]}").resolve()
    models = asked.find_models(run, policies)
    exports = {name: model for name, model in models.items() if isinstance(model, Source)}
    paths = {name: str(folder / asked.MODELS / name if name in exports else model) for name, model in models.items()}
    config = evaluation_config(composed, assignments, policies, paths, max(1, episodes), seed)
    evaluated = read_team(marl_section(config), evaluation=True)
    workflow, task_set = check_team(config, evaluated)
    if crossed and not partner and not task_set.sides:
        raise MarlError(f"--cross-play needs outcomes of sides, but task set '{team.task.name}' scores the whole team")
    check_scripts(config, evaluated, training=False)
    played = [edited_task] if edit else _tasks(run, marl, task_set, overrides, tasks)
    rehearse(workflow, played[0], evaluated)
    checks.check_machine(run)
    OmegaConf.update(config, "marl.run.folder", str(folder), force_add=True)
    config.data.train_files = config.data.val_files = str(folder / TASKS)
    config.data.val_batch_size = len(played)
    at_once = at_once or asked.AT_ONCE
    request = asked.Request(step, episodes, ks, int(config.marl.run.seed), assignments, exports, at_once)
    settings = {"run": run.resolve().name, "step": step, "tasks": len(played), "episodes": episodes, "k": list(ks)}
    settings |= {"swap": [list(pair) for pair in swaps], "untrained": list(dict.fromkeys(untrained))}
    settings |= {"seed": request.seed, "at_once": request.at_once, "overrides": list(overrides)}
    if crossed:
        request = replace(request, sides=crossed.sides, pairings=crossed.pairings)
        settings |= {"cross_play": list(chosen), "partner": partner}
    if edit:
        request, settings = replace(request, rows=rows), settings | {"edit": edit}
    resolved = resolve(config, evaluated)
    return EvaluationPlan(run, folder, resolved, played, request, settings, tuple(files))


def _episodes(episodes: int, k: str | Sequence[int] | None) -> tuple[int, ...]:
    if k is None:
        return (*(k for k in KS if k < episodes), episodes)
    words = k.split(",") if isinstance(k, str) else map(str, k)
    ks = sorted({int(word) if word.strip().isdecimal() else 0 for word in words})
    if not ks or ks[0] < 1 or ks[-1] > episodes:
        raise MarlError(f"--k must be whole numbers from 1 to --episodes ({episodes}), e.g. --k 1,4,8, got '{k}'")
    return tuple(ks)


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
    if wanted is not None and not 1 <= wanted <= len(tasks):
        raise MarlError(f"--tasks must be from 1 to {len(tasks)}, got {wanted}. Set marl.task.test_size=N for more.")
    return tasks[:wanted]


def check_overrides(overrides: Sequence[str]) -> None:
    """Raise MarlError for an override that does not affect episodes, or for which there is a command option."""
    for line, change in zip(overrides, parse_overrides(overrides), strict=True):
        if not TAKEN.fullmatch(change.key_or_group):
            raise MarlError(
                f"'{line}' has no effect on an evaluation: give keys of tasks, workflow, rollout or an agent's prompt "
                "(docs/evaluation.md), and options for weights, policies, episodes and seed (--help)"
            )


def evaluation_config(
    config: DictConfig,
    assignments: Mapping[str, asked.Assignment],
    policies: Mapping[str, asked.Assignment],
    models: Mapping[str, str],
    episodes: int,
    seed: int | None,
) -> DictConfig:
    """The unresolved config of an evaluation, from the run's composed config. Other policies are left out.

    Args:
        assignments: agent -> its policy, in a cross-play that of the first pairing.
        policies: those of all pairings, as `acting`.
        models: policy of the evaluation -> the model for its servers.
        episodes: sampled episodes per task; 1 without a sampled pass.
        seed: seed of sampling; None for the run's seed.
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
    marl.validation = {"sampler": "independent", "options": {"episodes": episodes}}
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
