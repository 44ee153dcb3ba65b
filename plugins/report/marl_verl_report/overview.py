"""What the page shows of a run beside its episodes: curves, team, algorithm, plugins, machine, commands."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from marl_verl.config.parts import algorithm_of
from marl_verl.config.stored import check_run, marl_section, read_config, team_of
from marl_verl.errors import MarlError
from marl_verl.files import read_json, read_text
from marl_verl.inspect.run_files import PLACES, about, use_plugin_files
from marl_verl.run.checkpoint.folders import complete, step_of
from marl_verl.run.lock import is_running
from marl_verl.run.run_dir import STARTS, RunDir
from marl_verl_report import curves, steps

SECTIONS = ("agents", "policies", "task", "workflow", "algorithm", "sampler", "validation", "schedule")
TOTAL = "trainer.total_training_steps"
OWN_PLACE = re.compile(r"\+{0,2}marl\.run\.(name|dir)=")
"""An override that gives a run its directory."""

Run = dict[str, Any]


def use(folder: Path, plugin_files: Sequence[Path]) -> None:
    """Use the plugin files of a run, and those given, from here on. MarlError: it is not a run directory."""
    check_run(folder, "config.yaml")
    use_plugin_files(folder, plugin_files)


def read(folder: Path) -> Run:
    """A run in `use` as JSON value, without its episodes. MarlError: a file or the name of it is damaged."""
    check_run(folder, "config.yaml")
    _check_places(folder)
    path = folder / "config.yaml"
    config = _config(path, path.stat().st_mtime_ns)
    marl, training = _sections(path, config)
    records, starts = _metrics(folder / "metrics.jsonl"), _starts(folder / STARTS)
    used = {name: value for name in SECTIONS if (value := marl.get(name)) is not None} | {"training": training}
    total = training[TOTAL]
    at = int(max((record["step"] for record in records), default=0))
    done = (folder / "summary.json").is_file() and at >= (total or 0)  # a resumed run has an earlier summary
    running = is_running(folder)
    stored, resume = steps.stored(folder), _resume(folder, total)
    return {
        "name": folder.resolve().name,
        "folder": str(folder),
        "agents": list(marl.get("agents") or {}),
        "lines": curves.lines(records, _held_out(folder, marl)),
        "metrics": curves.every_metric(records),
        "seed": (marl.get("run") or {}).get("seed"),
        "steps": total,
        "at": at,
        "done": done,
        "running": running,
        "stopped": None if done or running else _stopped(folder, at, total, resume),
        "algorithm": _algorithm(config),
        "config": {
            name: yaml.safe_dump({name: value}, sort_keys=False, allow_unicode=True) for name, value in used.items()
        },
        "plugins": [_plugin(each) for each in _json(folder / "plugins.json", [])],
        "starts": starts,
        "commands": _commands(folder, starts, stored, resume),
        "stored": {kind: list(files) for kind, files in stored.items()},
        "rows": list(RunDir(folder).stored_rows()),
    }


def _check_places(folder: Path) -> None:
    """Raise MarlError for a name that is no text, or a file in place of a folder."""
    try:
        f"{folder} {folder.resolve().name}".encode()
    except UnicodeEncodeError as error:
        raise MarlError(f"the name of run directory {str(folder)!a} is not valid UTF-8. Rename it.") from error
    for name in PLACES:
        if (folder / name).exists() and not (folder / name).is_dir():
            raise MarlError(f"'{folder / name}' is damaged: it must be a folder")


def _sections(path: Path, config: DictConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the `marl` section, the main options of training outside of it). MarlError: a value is damaged."""
    with about(f"'{path}' is damaged"):
        try:
            marl = marl_section(config)
            training = {key: OmegaConf.select(config, key) for key in (TOTAL, "data.train_batch_size")}
            resolved = config.get("policies", {})
            rates = {str(name): _rate(resolved[name]) for name in resolved} if isinstance(resolved, DictConfig) else {}
        except OmegaConfBaseException as error:
            raise MarlError(" ".join(str(error).split())) from error
        except ValueError as error:  # it is a text or a number
            raise MarlError("marl must be a mapping") from error
        if not isinstance(marl, dict):
            raise MarlError("marl must be a mapping")
        for name in ("run", "agents", "policies", "task"):
            if not isinstance(marl.get(name) or {}, dict):
                raise MarlError(f"marl.{name} must be a mapping")
        held_out = (marl.get("task") or {}).get("test_size")
        for name, value in (*training.items(), ("marl.task.test_size", held_out)):
            if value is not None and not isinstance(value, int):
                raise MarlError(f"{name} must be an integer")
    frozen = {name for name, own in (marl.get("policies") or {}).items() if isinstance(own, dict) and own.get("frozen")}
    return marl, {**training, "learning rate": {name: rate for name, rate in rates.items() if name not in frozen}}


def _rate(policy: Any) -> Any:
    return OmegaConf.select(policy, "actor_rollout_ref.actor.optim.lr") if isinstance(policy, DictConfig) else None


@lru_cache(maxsize=4)
def _config(path: Path, _changed: int) -> DictConfig:
    """The config of a run, read once while its file does not change: parsing it takes most of the time of `read`."""
    return read_config(path)


def _metrics(path: Path) -> list[dict[str, float]]:
    """metrics.jsonl; its last line may be half written."""
    if not path.exists():
        return []
    records = []
    for number, line in enumerate(read_text(path).splitlines(keepends=True), start=1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict) or not isinstance(record.get("step"), int | float):
                raise ValueError("not an object with a step")
            if not math.isfinite(record["step"]):
                raise ValueError("its step is not finite")
            for value in record.values():
                if isinstance(value, int):
                    float(value)  # OverflowError: more digits than a float can have
        except (ValueError, OverflowError, RecursionError) as error:
            if not line.endswith("\n"):
                break
            raise MarlError(f"'{path}' is damaged in line {number}: {error}") from error
        records.append(record)
    return records


def _json(path: Path, absent: Any) -> Any:
    if not path.exists():
        return absent
    found = read_json(path)
    if not isinstance(found, type(absent)) or not all(isinstance(each, dict) for each in found):
        raise MarlError(f"'{path}' is damaged: it must be a list of objects")
    return found


def _starts(path: Path) -> list[dict[str, Any]]:
    """starts.json. Each start may lack parts: versions may store others."""
    starts: list[dict[str, Any]] = _json(path, [])
    for number, start in enumerate(starts, start=1):
        machine, words = start.get("machine", {}), start.get("arguments", [])
        gpus = machine.get("gpus", []) if isinstance(machine, dict) else None
        for name, right in (
            ("arguments", isinstance(words, list) and all(isinstance(word, str) for word in words)),
            ("machine", isinstance(gpus, list) and all(isinstance(gpu, dict) for gpu in gpus)),
            ("packages", isinstance(start.get("packages", {}), dict)),
        ):
            if not right:
                raise MarlError(f"'{path}' is damaged: the {name} of start {number} cannot be read")
    return starts


def _algorithm(config: DictConfig) -> str:
    """Every option of the algorithm, with its default where the recipe does not set it; "" without its plugin."""
    try:
        team = team_of(config)
        return f"{team.algorithm.name}: {algorithm_of(team).describe()}"
    except MarlError:
        return ""


def _held_out(folder: Path, marl: dict[str, Any]) -> int:
    """The number of held-out tasks."""
    path = folder / "data" / "test.jsonl"
    if path.is_file():
        return read_text(path).count("\n")
    return (marl.get("task") or {}).get("test_size") or 0


def _plugin(each: dict[str, Any]) -> dict[str, Any]:
    return {name: each.get(name) for name in ("plugin", "distribution", "version", "content", "enabled", "error")}


def _resume(folder: Path, total: int | None) -> str | None:
    """The command that continues the run; None without a checkpoint that has steps left."""
    saved = complete(RunDir(folder).checkpoints)
    if not saved or total is None or step_of(saved[-1]) >= total:
        return None
    return f"marl-verl train --resume {shlex.quote(str(folder))}"


def _stopped(folder: Path, at: int, total: int | None, resume: str | None) -> str:
    """What the page shows of a run that no process trains, and that is not finished."""
    log = folder / "train.log"
    parts = [f"Stopped at step {at} of {'?' if total is None else total}", f"its log is {log}" if log.is_file() else ""]
    parts.append(f"continue with {resume}" if resume else "it has no checkpoint to continue from")
    return "; ".join(filter(None, parts))


def _commands(
    folder: Path, starts: list[dict[str, Any]], stored: dict[str, dict[int, Path]], resume: str | None
) -> list[str]:
    """Commands that repeat the run in a new directory, continue it, or look further into it; only those that work."""
    where, words = shlex.quote(str(folder)), starts[0].get("arguments", []) if starts else []
    again = [word for word in words if not OWN_PLACE.match(word)]
    commands = [f"marl-verl train {shlex.join(again)}"] if again and again[0] != "--resume" else []
    if resume:
        commands.append(resume)
    if complete(RunDir(folder).checkpoints):
        commands.append(f"marl-verl eval {where}")
    if RunDir(folder).stored_rows():
        commands.append(f"marl-verl explain {where}")
    if stored["train"]:
        commands.append(f"marl-verl replay {where}")
    elif stored["test"]:
        commands.append(f"marl-verl replay {shlex.quote(str(stored['test'][max(stored['test'])]))}")
    return commands
