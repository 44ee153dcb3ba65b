"""What makes a run the run that it is: a continuation must have all of it, and may change the rest.

Everything of the `marl` section belongs to it but names and places of files, limits of time, validation, and what is
kept on disk; so a new key belongs to it until somebody decides otherwise. Of verl's sections it is what decides which
weights there are, which data come in which order, and what is minimised. Learning rates, numbers of steps, sizes of
mini-batches, lengths and how often things happen may change.
"""

from __future__ import annotations

import dataclasses
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from marl_verl import plugins
from marl_verl.algorithms import Algorithm
from marl_verl.config.parts import algorithm_of
from marl_verl.config.stored import marl_section, team_of
from marl_verl.errors import MarlError, MarlWarning
from marl_verl.plugins import KINDS, content_of
from marl_verl.team import PolicyConfig, TeamConfig

Nested = dict[str, Any]

ELSEWHERE = ("run", "plugins", "agents", "policies", "pools", "algorithm")
"""Keys of `marl` whose identity is written another way: normalised, a policy at a time, or (plugins) by content."""

MAY_CHANGE = re.compile(
    r"checkpoint\..*|validation\..*|task\.test_(size|file)|critic\.(.*\.)?optim\.(lr.*|min_lr.*|total_training_steps)"
    r"|rollout\.(?!episode_tokens$).*|schedule\.(fill|batch|ahead|max_staleness)"
)
"""Keys of `marl` that a continuation may change. Of `rollout` those are limits of time and what is kept."""

DECISIVE = ("name", "kind")
"""Where one of these differs, the keys beside it follow from it and are not told."""

MODEL = ("tokenizer_path", "custom_chat_template")
LORA = ("lora_rank", "lora_alpha", "target_modules", "exclude_modules", "lora_adapter_path")
ACTOR = (
    *("strategy", "policy_loss", "loss_agg_mode", "loss_scale_factor", "entropy_coeff"),
    *("use_kl_loss", "kl_loss_coef", "kl_loss_type", "clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c"),
)
ROLLOUT = ("temperature", "top_p", "top_k")
DATA = ("train_batch_size", "shuffle", "seed")

NONE = "nothing"


def identity(config: DictConfig) -> Nested:
    """Of a resolved config, as it is stored with each checkpoint: plain containers, in no particular order."""
    marl, team = marl_section(config), team_of(config)
    mine = {key: value for key, value in marl.items() if key not in ELSEWHERE}
    mine = _without(mine, MAY_CHANGE)
    mine["run"] = {"seed": marl["run"]["seed"]}
    mine["agents"] = {name: dataclasses.asdict(agent) for name, agent in team.agents.items()}
    mine["policies"] = {name: _policy(policy, config) for name, policy in team.policies.items()}
    mine["algorithm"] = {"name": team.algorithm.name, "options": algorithm_of(team).options()}
    data = {key: config.data.get(key) for key in DATA}
    found: Nested = json.loads(json.dumps({"marl": mine, "data": data}, default=str))
    return found


def _policy(policy: PolicyConfig, config: DictConfig) -> Nested:
    if policy.endpoint is not None:
        return {"kind": f"endpoint {policy.endpoint.model} at {policy.endpoint.url}"}
    own: Any = OmegaConf.to_container(config.policies[policy.name], resolve=True)
    arr, trainer = own["actor_rollout_ref"], own["trainer"]
    model = {key: arr["model"].get(key) for key in MODEL}
    model["adapter"] = {key: arr["model"].get(key) for key in LORA} if arr["model"].get("lora_rank") else None
    # a tiny model is known by its description: its folder is wherever the cache is
    model |= {"tiny": policy.tiny} if policy.tiny is not None else {"path": arr["model"]["path"]}
    found: Nested = {"kind": "trained" if policy.trained else "frozen", "pool": policy.pool, "model": model}
    found["rollout"] = {key: arr["rollout"].get(key) for key in ROLLOUT}
    if policy.trained:
        found["gpus"], found["nodes"] = trainer["n_gpus_per_node"], trainer["nnodes"]
        found["loss"] = policy.loss
        found["actor"] = {key: arr["actor"].get(key) for key in ACTOR}
        found["actor"]["optim"] = {"optimizer": arr["actor"]["optim"].get("optimizer")}
        found["rollout_correction"] = own["algorithm"]["rollout_correction"]
    return found


def _without(section: Mapping[str, Any], pattern: re.Pattern[str], prefix: str = "") -> Nested:
    """A section without the keys that match, by their dotted names."""
    left: Nested = {}
    for key, value in section.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            if below := _without(value, pattern, f"{path}."):
                left[key] = below
        elif not pattern.fullmatch(path):
            left[key] = value
    return left


def used_plugins(config: DictConfig) -> dict[str, dict[str, str]]:
    """Distribution -> version and content hash, of those with a name that the run uses, of every plugin file, and of
    marl-verl itself."""
    marl, team = marl_section(config), team_of(config)
    known = plugins.load()
    files = {file.name for file in plugins.files_in_use()}
    used = {e.source for kind, name in _names(team, algorithm_of(team), marl) for e in known.find(kind, name)}
    used |= {source for source in known.loaded if source.distribution in files}
    used.add(next(iter(known.loaded)))  # the built-in parts come first
    return {
        source.distribution: {"version": source.version, "content": content_of(source)}
        for source in sorted(used, key=lambda source: source.distribution)
    }


def _names(team: TeamConfig, algorithm: Algorithm, marl: Nested) -> Iterator[tuple[str, str]]:
    """(kind, name) of everything that a run may use: not all of them need be registered."""
    yield "tasks", team.task.name
    yield "workflows", team.workflow.name
    yield "algorithms", team.algorithm.name
    yield "samplers", algorithm.sampler
    yield "samplers", str(marl["validation"]["sampler"])
    yield from (("rewards", agent.reward) for agent in team.agents.values() if agent.reward is not None)
    yield from (("losses", policy.loss or algorithm.loss) for policy in team.policies.values())
    # the algorithm's parts are among its options, under names of their own
    for value in algorithm.options().values():
        if isinstance(value, str):
            yield from ((kind, value) for kind in KINDS)


def plugin_changes(saved: Mapping[str, Mapping[str, str]]) -> list[str]:
    """What differs between the distributions that a run used and those that are installed, a clause each.

    Another version counts, another content of the same version does not: `warn_changed` warns of it.
    """
    found = {source.distribution: source.version for source in plugins.load().loaded}
    return [
        f"plugin distribution '{name}' ({plugin['version']} -> {found.get(name, 'not installed')})"
        for name, plugin in saved.items()
        if found.get(name) != plugin["version"]
    ]


def warn_changed(saved: Mapping[str, Mapping[str, str]]) -> None:
    """Warn of each plugin whose source has changed since the run used it, its version being the same."""
    for source in plugins.load().loaded:
        before = saved.get(source.distribution, {"content": ""})["content"]
        if before and before != content_of(source):
            warnings.warn(
                f"The source of {source} has changed since the checkpoint was saved (content hash {before[:12]} -> "
                f"{content_of(source)[:12]}). Results may differ from an uninterrupted run.",
                MarlWarning,
                stacklevel=2,
            )


def gone(saved: Mapping[str, Any]) -> list[str]:
    """The distributions that a run used and that are not loaded."""
    there = {source.distribution for source in plugins.load().loaded}
    return sorted(set(saved) - there)


def check_files(files: Iterable[plugins.PluginFile], saved: Mapping[str, Mapping[str, str]], run: Path) -> None:
    """Raise MarlError unless these plugin files are those that a run used.

    Args:
        saved: of the run's checkpoint, as `used_plugins`.
    """
    then = {name: source["version"] for name, source in saved.items() if name.endswith(".py")}
    now = {file.name: file.version for file in files}
    for name in sorted(then.keys() | now.keys()):
        if then.get(name) != now.get(name):
            raise MarlError(
                f"plugin file '{run / plugins.COPIES / name}' is not the one that run '{run}' used: its content was "
                f"{then.get(name, 'absent')} and is {now.get(name, 'absent')}. Restore the file to continue the run, "
                "or start a new run to use other plugin files."
            )


def changes(saved: Any, now: Any, where: str = "") -> list[str]:
    """What differs between two identities, a clause each: "marl.run.seed (0 -> 1)". The order of keys is nothing.

    What stands on one side only is one clause, and so is a part with another name: its options follow from the name.
    """
    if saved == now:
        return []
    if not isinstance(saved, Mapping) or not isinstance(now, Mapping):
        return [f"{where} ({_shown(saved)} -> {_shown(now)})"]
    for key in DECISIVE:
        if key in saved and key in now and saved[key] != now[key]:
            return [f"{where}.{key} ({_shown(saved[key])} -> {_shown(now[key])})"]
    found: list[str] = []
    for key in sorted({*saved, *now}):
        path = f"{where}.{key}" if where else str(key)
        if key in saved and key in now:
            found += changes(saved[key], now[key], path)
        else:
            found.append(f"{path} ({_shown(saved[key]) if key in saved else NONE} -> ")
            found[-1] += f"{_shown(now[key]) if key in now else NONE})"
    return found


def _shown(value: Any) -> str:
    said = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return said if len(said) <= 80 else said[:77] + "..."


def check_same(team: Mapping[str, Any], config: DictConfig, folder: Path) -> None:
    """Raise MarlError with everything that differs between a checkpoint and the config that wants to continue it.

    Args:
        team: the checkpoint's team file.
        config: resolved.
        folder: of the checkpoint.
    """
    refuse([*changes(team["identity"], identity(config)), *plugin_changes(team["plugins"])], folder)
    warn_changed(team["plugins"])


def refuse(different: list[str], folder: Path) -> None:
    """Raise MarlError if anything is different."""
    if different:
        raise MarlError(
            f"this is not the run that checkpoint '{folder}' was made by; what differs (then -> now): "
            f"{', '.join(different)}: continue with what the run had, or start a new run"
        )
