"""What the page shows of a run beside its episodes: curves, team, algorithm, plugins, machine, commands."""

import contextlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from marl_verl_inspect.files import use_plugin_files
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from marl_verl.config.parts import algorithm_of
from marl_verl.config.stored import check_run, marl_section, read_config, team_of
from marl_verl.errors import MarlError, user_error
from marl_verl.files import read_json, read_text
from marl_verl.run.reading import Run as StoredRun
from marl_verl.run.run_dir import STARTS, RunDir, how_to_continue, is_running
from marl_verl_report import curves, steps

SECTIONS = ("agents", "policies", "task", "workflow", "algorithm", "sampler", "validation", "schedule")
TOTAL = "trainer.total_training_steps"
PLUGIN = ("plugin", "distribution", "version", "content", "error")  # what the page shows of one

Run = dict[str, Any]


def use(folder: Path, plugin_files: Sequence[Path]) -> None:
    """Use the plugin files of a run, and those given, from here on. MarlError: it is not a run directory."""
    check_run(folder, "config.yaml")
    use_plugin_files(folder, plugin_files)


def read(folder: Path) -> Run:
    """A run in `use` as JSON value, without its episodes. MarlError: a file is damaged."""
    check_run(folder, "config.yaml")
    damages = (OmegaConfBaseException, AttributeError, KeyError, OSError, RecursionError, TypeError, ValueError)
    with user_error(f"run '{folder}' is damaged", *damages):
        path = folder / "config.yaml"
        config = _config(path, path.stat().st_mtime_ns)
        marl, total = marl_section(config), OmegaConf.select(config, TOTAL)
        records = StoredRun(folder).metrics
        starts = read_json(folder / STARTS) if (folder / STARTS).is_file() else []
        plugins = read_json(folder / "plugins.json") if (folder / "plugins.json").is_file() else []
        trained = [name for name, policy in marl["policies"].items() if not (policy or {}).get("frozen")]
        rate = "policies.{}.actor_rollout_ref.actor.optim.lr"
        training = {TOTAL: total, "data.train_batch_size": OmegaConf.select(config, "data.train_batch_size")}
        training |= {"learning rate": {name: OmegaConf.select(config, rate.format(name)) for name in trained}}
        used = {name: value for name in SECTIONS if (value := marl.get(name)) is not None} | {"training": training}
        tasks = folder / "data" / "test.jsonl"
        held_out = read_text(tasks).count("\n") if tasks.is_file() else marl["task"].get("test_size") or 0
        algorithm = ""  # every option, with its default where the recipe does not set it
        with contextlib.suppress(MarlError):  # its plugin is not installed here
            team = team_of(config)
            algorithm = f"{team.algorithm.name}: {algorithm_of(team).describe()}"
        at = int(max((record["step"] for record in records), default=0))
        done = (folder / "summary.json").is_file() and at >= (total or 0)  # a resumed run has an earlier summary
        running = is_running(folder)
        stored = steps.stored(folder)
        stopped = f"Stopped at step {at} of {total or '?'}, see {folder / 'train.log'}. {how_to_continue(folder)}"
        return {
            "name": folder.resolve().name,
            "folder": str(folder),
            "agents": list(marl["agents"]),
            "policies": list(marl["policies"]),
            "act_seconds": (marl.get("rollout") or {}).get("act_seconds"),
            "lines": curves.lines(records, held_out),
            "metrics": curves.every_metric(records),
            "seed": marl["run"]["seed"],
            "steps": total,
            "at": at,
            "done": done,
            "running": running,
            "stopped": None if done or running else stopped,
            "algorithm": algorithm,
            "config": {
                name: yaml.safe_dump({name: value}, sort_keys=False, allow_unicode=True) for name, value in used.items()
            },
            "plugins": [{name: plugin.get(name) for name in PLUGIN} for plugin in plugins],
            "starts": starts,
            "stored": {kind: list(files) for kind, files in stored.items()},
            "rows": list(RunDir(folder).stored("rows")),
        }


@lru_cache(maxsize=4)
def _config(path: Path, _changed: int) -> DictConfig:
    """The config of a run, read once while its file does not change: parsing it takes most of the time of `read`."""
    return read_config(path)
