"""What installed distributions add besides registered parts: entry points of the groups `marl_verl.GROUP`.

- `api`: a function, which is `marl_verl.NAME`; `read_episodes`, of a file, for the episodes of a `Run`.
- `team`: a function; `team.NAME(...)` calls it with the team, or the agent, as first argument; or a class, of which
  `team.NAME` is an instance for the team, or the agent.
- `run`: a module for the option `marl.run.NAME`, with `check(value)`, which raises MarlError; `use(value)`, called in
  each rollout worker, with None where the option is not set; and `used()`, what is stored under NAME with an episode,
  or None.
- `state`: a module for the option `marl.run.NAME` of what episodes leave to later steps: `check(value)`, also of None;
  `State(value)`, on the driver, with `sent()`, a value that goes with each task, `record(reports)` and `metrics()` of
  a step, `save` and `load` of a checkpoint's folder; in the rollout workers `enter(sent)`, before a task is played, and
  `written(episodes)`, which becomes `Report.written[NAME]`.
- `policy`: a module for the key NAME of an agent's section, which makes the agent act with past versions of a policy:
  `policy_of(section, where, policies)`, the agent's frozen `PolicyConfig`, whose `past` has `of`, `kind` (NAME) and the
  method `described`; `Past`, those of a run; and `Snapshots`, `check` and `read` of those of a checkpoint.
- `teacher`: the module of `marl.policies.NAME.teacher`, another policy that NAME learns from. `settings_of` makes of
  the section what has its `policy`, `problems(student, policies)`, `described()`, `serve(student, sections)`, which
  changes resolved sections, and `teaching(student)`, its part of the update. `translate(script)` sets verl keys of it.
- `schedule`: a module for `marl.schedule.mode=NAME`: `problems(config, team, algorithm, synthetic)`, as in
  `config.fit.check_schedule`; `schedule(trainer)`, with the methods of `trainer.loop.Synchronous`; and `Gate`, with the
  context `request()`, of a policy in a rollout worker.
- `task`: a function for the key `marl.task.NAME`, which changes a composed config, given the recipe's folder. Returns
  files that run as plugins.
- `main`: what `python -m marl_verl.NAME` calls; it returns the exit code.
- `parts`: a module whose parts of algorithms have short names in every config.
- `model`, `pretrained`: sources of models (`marl_verl.models.sources`).
- `client`: the module `endpoint` of `marl.policies.NAME.endpoint`, with `check(policy, endpoint)` before a run, `reach`
  when it starts, `endpoint_key`, and `EndpointClient`, a `Client` of `backend/rollout/clients.py`.
- `backend`: a module for `marl.run.backend=NAME`, with `opened(config, phase, host)`, the `Backend` of a run's config
  (`backend/protocol.py`). That of `local`, whose runs are in the command's process, also has `check_settings(config,
  pools)`, which raises MarlError; `run_here`; `load()`, which imports what a run needs; and `train`, the command.
- `plan`: a function of a checked run: its resolved config, its team, policy -> the model to make, policy -> rows of a
  batch. What it returns are lines of the summary, headed NAME. MarlError refuses the run.
- `score`: a module for verl's data source NAME, with `wrong_truth(truth)`, the reason why a row's ground truth cannot
  be used, or None; and `score_program(text, truth, megabytes)`, 0 to 1.
"""

import functools
import importlib.metadata
import json
import os
import re
from collections.abc import Mapping
from typing import Any

from marl_verl.errors import MarlError, user_error

RUN_OPTIONS = "MARL_VERL_RUN_OPTIONS"  # those of `use_run_options`, for the processes that score answers


@functools.cache
def extension(group: str, name: str) -> Any:
    """The object that a distribution adds to a group under a name; None without it."""
    points = importlib.metadata.entry_points(group=f"marl_verl.{group}", name=name)
    return next((point.load() for point in points), None)


@functools.cache
def names(group: str) -> tuple[str, ...]:
    """The names of a group, sorted."""
    return tuple(sorted(importlib.metadata.entry_points(group=f"marl_verl.{group}").names))


@functools.cache
def missing_extras() -> frozenset[str]:
    """The extras of marl-verl whose plugin is not installed: that of the same name, or the only one of the extra. By
    marl-verl's own metadata, in which an extra lists also what comes with its plugin."""
    plugins: dict[str, set[str]] = {}
    for requirement in importlib.metadata.requires("marl-verl") or ():
        if match := re.match(r"(marl-verl-[\w-]+).*;.*extra == .([\w-]+)", requirement):
            plugins.setdefault(match[2], set()).add(match[1])
    chosen = {extra: names & {f"marl-verl-{extra}"} or names for extra, names in plugins.items()}
    absent = {name for name in set().union(*chosen.values()) if not any(importlib.metadata.distributions(name=name))}
    return frozenset(extra for extra, names in chosen.items() if len(names) == 1 and names <= absent)


def pip_line(extra: str) -> str:
    """The hint of an error about a key that an extra adds."""
    return f"pip install 'marl-verl[{extra}]' adds it"


def required(group: str, name: str, where: str, extra: str) -> Any:
    """`extension`. MarlError, which begins with `where`, without it; `extra` adds it."""
    if (module := extension(group, name)) is None:
        raise MarlError(f"{where}: {pip_line(extra)}")
    return module


def check_run_options(run: Mapping[str, Any]) -> None:
    """MarlError if a distribution refuses the value of its option of `marl.run`."""
    for name in names("run"):
        if (value := run.get(name)) is not None:
            with user_error(f"'marl.run.{name}'"):
                extension("run", name).check(value)
    for name in names("state"):
        extension("state", name).check(run.get(name))


def states(run: Mapping[str, Any]) -> dict[str, Any]:
    """Option of `marl.run` that is set -> its module of group `state`."""
    return {name: extension("state", name) for name in names("state") if run.get(name) is not None}


def use_run_options(run: Mapping[str, Any]) -> None:
    """Apply the options of `marl.run` that distributions add in this process."""
    for name in names("run"):
        extension("run", name).use(run.get(name))
    chosen = {name: run.get(name) for name in names("run") if run.get(name) is not None}
    os.environ[RUN_OPTIONS] = json.dumps(chosen)


def used_run_options() -> dict[str, Any]:
    """What is stored of these options with an episode of this process."""
    values = {name: extension("run", name).used() for name in names("run")}
    return {name: value for name, value in values.items() if value is not None}
