"""What the page shows of a run beside its episodes: curves, team, algorithm, plugins, machine, commands."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from marl_verl.config.parts import algorithm_of
from marl_verl.config.stored import check_run, marl_section, read_config, team_of
from marl_verl.errors import MarlError
from marl_verl.inspect.page import curves, steps
from marl_verl.inspect.run_files import use_plugin_files
from marl_verl.process.run_dir import STARTS, RunDir

SECTIONS = ("agents", "policies", "task", "workflow", "algorithm", "sampler", "validation", "schedule")
Run = dict[str, Any]


def use(folder: Path, plugin_files: Sequence[Path]) -> None:
    """Use the plugin files of a run, and those given, from here on. MarlError: it is not a run directory."""
    check_run(folder, "config.yaml")
    use_plugin_files(folder, plugin_files)


def read(folder: Path) -> Run:
    """A run in `use` as JSON value, without its episodes. MarlError: a file of it is damaged."""
    check_run(folder, "config.yaml")
    path = folder / "config.yaml"
    config = _config(path, path.stat().st_mtime_ns)
    marl, records = marl_section(config), _metrics(folder / "metrics.jsonl")
    used = {name: value for name in SECTIONS if (value := marl.get(name)) is not None}
    trainer = OmegaConf.select(config, "trainer.total_training_steps")
    run = marl.get("run") or {}
    at = int(max((record["step"] for record in records), default=0))
    return {
        "name": folder.resolve().name,
        "folder": str(folder),
        "agents": list(marl.get("agents") or {}),
        "lines": curves.lines(records, _held_out(folder, marl)),
        "metrics": curves.every_metric(records),
        "seed": run.get("seed"),
        "steps": trainer,
        "at": at,
        "done": (folder / "summary.json").is_file() and at >= (trainer or 0),  # a resumed run has an earlier summary
        "algorithm": _algorithm(config),
        "config": {name: OmegaConf.to_yaml(OmegaConf.create({name: value})) for name, value in used.items()},
        "plugins": [_plugin(each) for each in _json(folder / "plugins.json", [])],
        "starts": _json(folder / STARTS, []),
        "commands": _commands(folder, run),
        "stored": {kind: list(files) for kind, files in steps.stored(folder).items()},
        "rows": list(RunDir(folder).stored_rows()),
    }


@lru_cache(maxsize=4)
def _config(path: Path, _changed: int) -> DictConfig:
    """The config of a run, read once while its file does not change: parsing it takes most of the time of `read`."""
    return read_config(path)


def _metrics(path: Path) -> list[dict[str, float]]:
    """metrics.jsonl; its last line may be half written."""
    if not path.is_file():
        return []
    records = []
    for number, line in enumerate(_text(path).splitlines(keepends=True), start=1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict) or not isinstance(record.get("step"), int | float):
                raise ValueError("not an object with a step")
        except ValueError as error:
            if not line.endswith("\n"):
                break
            raise MarlError(f"'{path}' is damaged in line {number}: {error}") from error
        records.append(record)
    return records


def _json(path: Path, absent: Any) -> Any:
    if not path.is_file():
        return absent
    try:
        found = json.loads(_text(path))
    except ValueError as error:
        raise MarlError(f"'{path}' is damaged: {error}") from error
    if not isinstance(found, type(absent)) or not all(isinstance(each, dict) for each in found):
        raise MarlError(f"'{path}' is damaged: it must be a list of objects")
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MarlError(f"'{path}' cannot be read: {error}") from error


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
        return _text(path).count("\n")
    return int((marl.get("task") or {}).get("test_size") or 0)


def _plugin(each: dict[str, Any]) -> dict[str, Any]:
    return {name: each.get(name) for name in ("plugin", "distribution", "version", "content", "enabled", "error")}


def _commands(folder: Path, run: dict[str, Any]) -> list[str]:
    """Commands that look further into the run; those that started it are in its starts."""
    where = shlex.quote(str(folder))
    commands = [f"marl-verl train --resume {where}", f"marl-verl eval {where}", f"marl-verl explain --run {where}"]
    recipe = run.get("recipe")
    again = [f"marl-verl train {shlex.quote(str(recipe))} marl.run.seed={run.get('seed')}"] if recipe else []
    return [*again, *commands, f"marl-verl replay --run {where}"]
