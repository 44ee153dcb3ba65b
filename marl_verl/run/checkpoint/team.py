"""Checkpoints of a whole team: all state that is needed to resume a run, and what the resumed run must have in common.

docs/checkpoints.md lists its files. The fingerprint contains the `marl` section except paths, time limits, validation,
and settings of stored files, so a new key is included by default. Of verl's sections it contains keys that determine
weights, data and their order, and objective.
"""

import dataclasses
import json
import random
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from marl_verl import plugins
from marl_verl.config.parts import algorithm_of, loss_of
from marl_verl.config.stored import marl_section, team_of
from marl_verl.config.verl_keys import key_paths
from marl_verl.errors import MarlError, MarlWarning
from marl_verl.extensions import states
from marl_verl.files import write_json
from marl_verl.plugins import one_file
from marl_verl.plugins.loading import top_of
from marl_verl.run.checkpoint import folders
from marl_verl.team import PolicyConfig

Nested = dict[str, Any]

ELSEWHERE = ("run", "plugins", "agents", "policies", "pools", "algorithm")
"""Keys of `marl` that `resume_fingerprint` normalises, and plugins, which are compared by content."""

MAY_CHANGE = re.compile(
    r"checkpoint\..*|validation\..*|task\.test_(size|file)|critic\.(.*\.)?optim\.(lr.*|min_lr.*|total_training_steps)"
    r"|rollout\.(?!episode_tokens$).*|schedule\.(fill|batch|ahead|max_staleness)"
)
"""Keys of `marl` that a resumed run may change. In `rollout` these are time limits and stored files."""

DECISIVE = (".name", ".kind")
"""If one of these differs, the other keys of the section are not listed, because they follow from it."""

MODEL = ("tokenizer_path", "custom_chat_template")
LORA = ("lora_rank", "lora_alpha", "target_modules", "exclude_modules", "lora_adapter_path")
ACTOR = (
    *("strategy", "policy_loss", "loss_agg_mode", "loss_scale_factor", "entropy_coeff"),
    *("use_kl_loss", "kl_loss_coef", "kl_loss_type", "clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c"),
)
OF_POLICY = ("past", "teacher", "tool_parser", "reasoning_parser")
ROLLOUT = ("temperature", "top_p", "top_k")
DATA = ("train_batch_size", "shuffle", "seed")

ABSENT = object()


class Checkpoints:
    """Writes and loads the checkpoints of a run. `parts`: path in a checkpoint -> what is saved there, with the methods
    `save(folder, step)` and `load(folder)`; `together`: how calls to different parts run (`Policies.together`)."""

    def __init__(
        self, config: Any, run: Path, parts: Mapping[str, Any], data: Any, schedule: Any, together: Callable[..., Any]
    ) -> None:
        self._config, self._run, self._root = config, run, run / "checkpoints"
        self._parts, self._data, self._schedule, self._together = parts, data, schedule, together

    def write(self, step: int) -> None:
        """Write to a temporary folder, and flush it to the disk. MarlError if the disk is full."""
        import numpy as np
        import torch  # not at the top, because the command line imports this module

        self._root.mkdir(parents=True, exist_ok=True)
        folders.tidy(self._root)
        folder = self._writing(step)
        try:
            (folder / "policies").mkdir(parents=True)
            self._together({path: partial(part.save, folder / path, step) for path, part in self._parts.items()})
            torch.save(self._data.state_dict(), folder / "data.pt")
            state = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
            torch.save(state, folder / "random.pt")
            if (schedule := self._schedule.state()) is not None:
                torch.save(schedule, folder / "schedule.pt")
            write_json(folder / folders.TEAM_FILE, {**describe(self._config, step), "files": folders.manifest(folder)})
            folders.flush(folder)
        except Exception as error:
            if not folders.is_full(error, self._root):
                raise
            shutil.rmtree(folder, ignore_errors=True)
            saved = folders.complete(self._root)
            remedy = f"continue with marl-verl train --resume {self._run}" if saved else "start the run again"
            problem = f"no space left while saving step {step} in '{self._root}'"
            raise MarlError(f"{problem}. Free space and {remedy}") from error

    def commit(self, step: int) -> None:
        """Rename the checkpoint from `write`, if this step has one, to its final name and remove old checkpoints.

        Called after the step's metrics and validation are stored: a run that is killed earlier repeats the step.
        """
        if self._writing(step).is_dir():
            folders.commit(self._writing(step), self._root / f"step_{step}")
            for old in folders.complete(self._root)[: -int(self._config.marl.checkpoint.keep)]:
                folders.discard(old)

    def load(self) -> int:
        """Load the newest complete checkpoint if the run is resumed. Returns its step; 0 for a new run.

        That it is of this run has been checked before this process started (`run.prepare`).
        """
        import numpy as np
        import torch

        if self._config.trainer.resume_mode == "disable":
            return 0
        folders.tidy(self._root)
        saved = folders.complete(self._root)
        if not saved:
            return 0
        folder = folders.intact(saved[-1])
        self._together({path: partial(part.load, folder / path) for path, part in self._parts.items()})
        self._data.load_state_dict(folders.load_pickle(folder / "data.pt"))
        state = folders.load_pickle(folder / "random.pt")
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])
        torch.set_rng_state(state["torch"])
        schedule = folder / "schedule.pt"
        self._schedule.restore(folders.load_pickle(schedule) if schedule.is_file() else None)
        return folders.step_of(folder)

    def _writing(self, step: int) -> Path:
        return self._root / f"{folders.WRITING}step_{step}"


def describe(config: DictConfig, step: int) -> dict[str, Any]:
    """The content of a team file without the list of files, from the resolved config."""
    distributions = {"plugins": used_plugins(config), "loaded_plugins": plugins.load().fingerprint()}
    return {"step": step, "fingerprint": resume_fingerprint(config), **distributions}


def resume_fingerprint(config: DictConfig) -> Nested:
    """The fingerprint of a resolved config, as it is stored with each checkpoint: plain containers."""
    marl, team = marl_section(config), team_of(config)
    kept = {key: value for key, value in _flat(marl).items() if not MAY_CHANGE.fullmatch(key)}
    mine: Nested = {key: value for key, value in kept.items() if key.partition(".")[0] not in ELSEWHERE}
    mine["run"] = {name: marl["run"][name] for name in ("seed", *states(marl["run"]))}
    mine["agents"] = {name: dataclasses.asdict(agent) for name, agent in team.agents.items()}
    for agent in mine["agents"].values():
        del agent["algorithm"]  # its advantage is in the team's algorithm, its loss in the section of its policy
    mine["policies"] = {name: _policy(policy, config) for name, policy in team.policies.items()}
    mine["algorithm"] = {"name": team.algorithm.name, "options": algorithm_of(team).options()}
    return json.loads(json.dumps({"marl": mine, "data": _chosen(config.data, DATA)}, default=str))


def _policy(policy: PolicyConfig, config: DictConfig) -> Nested:
    if policy.endpoint is not None:
        return {"kind": f"endpoint {policy.endpoint.model} at {policy.endpoint.url}"}
    if policy.script is not None:
        return {"kind": f"script {policy.script}"}
    section: Any = OmegaConf.to_container(config.policies[policy.name], resolve=True)
    arr, trainer = section["actor_rollout_ref"], section["trainer"]
    model = _chosen(arr["model"], MODEL)
    model["adapter"] = _chosen(arr["model"], LORA) if arr["model"].get("lora_rank") else None
    # a model to make is identified by its description: its folder depends on the cache
    made = policy.made
    model |= {"path": arr["model"]["path"]} if made is None else {made.name: made.options}
    fixed: Nested = {"kind": "trained" if policy.trained else "frozen", "pool": policy.pool, "model": model}
    fixed |= {key: repr(value) for key in OF_POLICY if (value := getattr(policy, key))}
    fixed["rollout"] = _chosen(arr["rollout"], ROLLOUT) | {"stop": policy.stop}
    fixed |= section["data"]
    if policy.trained:
        fixed |= {"gpus": trainer["n_gpus_per_node"], "nodes": trainer["nnodes"], "loss": policy.loss}
        fixed["actor"] = _chosen(arr["actor"], ACTOR) | {"optim": _chosen(arr["actor"]["optim"], ("optimizer",))}
        fixed["rollout_correction"] = section["algorithm"]["rollout_correction"]
    return fixed


def _chosen(section: Any, keys: Iterable[str]) -> Nested:
    return {key: section.get(key) for key in keys}


def _flat(section: Mapping[str, Any], prefix: str = "") -> Nested:
    """Path of each value, "task.options.size" -> the value."""
    return {path: value for path, value in key_paths(section, prefix) if not isinstance(value, Mapping)}


def used_plugins(config: DictConfig) -> dict[str, dict[str, str]]:
    """Distribution -> version and content hash, for every part in use, every plugin file, and marl-verl."""
    marl, team = marl_section(config), team_of(config)
    known = plugins.load()
    files = {file.name for file in one_file.files_in_use()}
    algorithm = algorithm_of(team)
    names = [("tasks", team.task.name), ("workflows", team.workflow.name), ("algorithms", team.algorithm.name)]
    names += [("samplers", name) for name in (algorithm.sampler, marl["validation"]["sampler"] or "independent")]
    names += [("rewards", agent.reward) for agent in team.agents.values() if agent.reward is not None]
    names += [("algorithms", agent.algorithm.name) for agent in team.agents.values() if agent.algorithm is not None]
    names += [("losses", loss_of(team, policy)[0]) for policy in team.policies]
    used = {entry.source for kind, name in names for entry in known.find(kind, name)}  # not all need be registered
    used |= {source for source in known.loaded if source.distribution in files}
    used.add(next(iter(known.loaded)))  # the built-in parts come first
    packages = {top_of(type(part).__module__) for part in algorithm.parts()}
    packages |= {top_of(module.__name__) for module in states(marl["run"]).values()}
    used |= {source for source in known.loaded if top_of(source.target) in packages}
    ordered = sorted(used, key=lambda source: source.distribution)
    return {source.distribution: {"version": source.version, "content": known.content(source)} for source in ordered}


def check_plugins(saved: Mapping[str, Mapping[str, str]], folder: Path) -> None:
    """MarlError if the plugins in use are not those `saved` in a checkpoint (`used_plugins`; the version of a plugin
    file is its content); a MarlWarning for one whose source has changed."""
    known = plugins.load()
    sources = {source.distribution: source for source in known.loaded}
    used = [name for name in (*saved, *(file.name for file in one_file.files_in_use())) if name in sources]
    versions = {name: distribution["version"] for name, distribution in saved.items()}
    refuse(changes(versions, {name: sources[name].version for name in used}, "plugin"), folder)
    for name, before in saved.items():
        if before["content"] and before["content"] != (now := known.content(sources[name])):
            hashes = f"content hash {before['content'][:12]} -> {now[:12]}"
            message = f"The source of {sources[name]} has changed since the checkpoint was saved ({hashes})"
            warnings.warn(f"{message}. Results may differ from an uninterrupted run.", MarlWarning, stacklevel=2)


def check_same(team: Mapping[str, Any], config: DictConfig, folder: Path) -> None:
    """Raise MarlError with every setting that differs between a checkpoint's team file and a resolved config."""
    refuse(changes(team["fingerprint"], resume_fingerprint(config)), folder)


def refuse(clauses: list[str], folder: Path) -> None:
    if clauses:
        raise MarlError(
            f"the run does not match checkpoint '{folder}' (saved -> now): {', '.join(clauses)}. "
            "Restore these settings to resume the run, or start a new run."
        )


def changes(saved: Nested, now: Nested, prefix: str = "") -> list[str]:
    """The differences between two fingerprints, one clause each: "marl.run.seed (0 -> 1)"."""
    before, after = _flat(saved, prefix), _flat(now, prefix)
    keys = [key for key in sorted({*before, *after}) if before.get(key, ABSENT) != after.get(key, ABSENT)]
    decided = tuple(key.rpartition(".")[0] for key in keys if key.endswith(DECISIVE))
    shown = [key for key in keys if key.endswith(DECISIVE) or not key.startswith(decided)]
    return [f"{key} ({_shown(before.get(key, ABSENT))} -> {_shown(after.get(key, ABSENT))})" for key in shown]


def _shown(value: Any) -> str:
    text = "nothing" if value is ABSENT else json.dumps(value, ensure_ascii=False, sort_keys=True)
    return text if len(text) <= 80 else text[:77] + "..."
