"""The Python API: what the command `train` does, for scripts and notebooks; docs/python.md.

Modules are imported in the functions, so that `--help` needs neither Hydra nor Ray.
"""

import json
import os
import re
import shlex
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from marl_verl.errors import MarlError
from marl_verl.files import SAFE_PATH, read_json
from marl_verl.run.reading import Run, load_run
from marl_verl.threads import outside_loop

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from marl_verl.run.prepare import Plan
    from marl_verl.run.progress import Display, Progress

__all__ = ["Run", "load_run", "train"]

StrPath = str | os.PathLike[str]
Overrides = Sequence[str] | Mapping[str, Any]
Backend = Literal["local", "verl"]
_AT_WORK = threading.Lock()  # Hydra and the cleanup of a run's processes support one run per process at a time


def train(
    recipe: StrPath | Mapping[str, Any] | None = None,
    overrides: Overrides = (),
    *,
    plugins: Sequence[StrPath] = (),
    resume: StrPath | None = None,
    backend: Backend | None = None,
    dry_run: bool = False,
    progress: "Progress" = True,
) -> Run:
    """Train a team from a recipe, as `marl-verl train` does. Returns when training has finished.

    It may be called in a notebook, and in any thread; a process trains or evaluates one run at a time.

    Args:
        recipe: a YAML file, or its content as a mapping (`defaults` is optional).
        overrides: `["a.b=1"]` in the grammar of the command line, or `{"a.b": 1}`.
        plugins: plugin files in addition to those of the recipe; docs/one-file-plugins.md.
        resume: a run directory to continue, instead of a recipe.
        backend: "local" trains in this process, "verl" with Ray and vLLM; default: `marl.run.backend`.
        dry_run: check everything and write nothing; the returned run has no directory yet.
        progress: whether to print progress; or a function that is called with every event, a dict. An exception of it
            ends the run.

    Raises:
        MarlError: an error in the arguments, the recipe or a plugin, before training starts.
        RunError: training failed after it had started; the message has the reason and the path of the log.
        KeyboardInterrupt: Ctrl-C; the run has ended, and can be resumed from its latest checkpoint.
    """
    from marl_verl.run.prepare import make_run_directory
    from marl_verl.run.progress import Display
    from marl_verl.run.run_dir import locked

    with alone():
        display = Display.of(progress)
        plan = planned(display, recipe, override_lines(overrides, backend), plugins, resume, dry_run)
        if dry_run:
            return Run(plan.folder)
        with locked(plan.folder if plan.resumed else make_run_directory(plan, display)) as lock:
            if plan.resumed:
                make_run_directory(plan, display)
            return trained(plan.folder, plan.resolved, display, lock)


def planned(display: "Display", *arguments: Any) -> "Plan":
    """The first part of `train`: check everything, and print a summary. `arguments` are those of `plan_of`."""
    from marl_verl.config.policy_models import check_scripts
    from marl_verl.run.describe import describe

    plan = outside_loop(lambda: plan_of(*arguments))
    check_scripts(plan.config, plan.team, training=True)
    display.print(describe(plan))
    return plan


def trained(folder: Path, config: "DictConfig", display: "Display", lock: int) -> Run:
    """The last part of `train`: work on a run directory with a resolved config, while its `locked` is held."""
    from marl_verl.run.supervisor import start

    display.print(f"run {folder}, log {folder / 'train.log'}")
    start("marl_verl.trainer.run:train", folder, config, display, lock)
    _show_summary(folder, display)
    return Run(folder)


def _show_summary(folder: Path, display: "Display") -> None:
    """Print the success before and after a run, and suggest commands."""
    from marl_verl.run.run_dir import RunDir

    summary, run = read_json(folder / "summary.json"), shlex.quote(str(folder))
    tested = {summary["success_before"], summary["success_after"]} != {None}
    display.print(f"{summary['steps']} steps" + f", {summary['eval_tasks']} held-out tasks (95 % interval)" * tested)
    for when in ("before", "after"):
        if (success := summary[f"success_{when}"]) is not None:
            low, high = summary[f"success_{when}_interval"]
            greedy = f"team success, greedy {success:.1%} ({100 * low:.1f} to {100 * high:.1f})"
            answers = "".join(f", {name} {value:.3f}" for name, value in summary[f"answer_{when}"].items())
            display.print(f"{when}: {greedy}, sampled {summary[f'success_{when}_sampled']:.1%}{answers}")
    if summary["steps"]:
        first = f"{summary['seconds_to_first_step']:.0f} s to the end of the first step"
        then = f"then {summary['seconds_per_step']:.1f} s a step"
        display.print(f"{summary['seconds_total']:.0f} s in all: {first}, {then}")
    if summary["checkpoint"]:
        display.print(f"checkpoint {folder / summary['checkpoint']}")
    files = RunDir(folder)
    stored = {"replay": files.stored("journals"), "explain": files.stored("rows"), "eval": summary["checkpoint"]}
    if commands := [f"marl-verl {command} {run}" for command, content in stored.items() if content]:
        display.print(f"next, try: {', '.join(commands)}")


@contextmanager
def alone() -> Iterator[None]:
    """Where a run is trained or evaluated, the only one of this process."""
    use_installed_verl()
    from marl_verl import plugins
    from marl_verl.plugins import one_file

    files = one_file.files_in_use()
    if not _AT_WORK.acquire(blocking=False):
        why = "wait until it has finished, or start the other run in another process"
        raise MarlError(f"this process already trains or evaluates a run: {why}")
    try:
        yield
    finally:
        plugins.use_files(files)
        _AT_WORK.release()


def plan_of(
    recipe: StrPath | Mapping[str, Any] | None,
    overrides: list[str],
    plugins: Sequence[StrPath] = (),
    resume: StrPath | None = None,
    dry_run: bool = False,
) -> "Plan":
    from omegaconf import OmegaConf

    from marl_verl.run.prepare import continue_run, plan_run
    from marl_verl.run.run_dir import is_running, locked

    files = [Path(file) for file in plugins]
    if resume is not None and recipe is None:
        if not dry_run and is_running(Path(resume)):
            with locked(Path(resume)):  # refused at once: planning takes seconds
                pass
        return continue_run(Path(resume), overrides, files)
    if recipe is None or resume is not None:
        raise MarlError("give either a recipe (`marl-verl recipes` lists the bundled ones) or a run to resume")
    if not isinstance(recipe, Mapping):
        return plan_run(Path(recipe), overrides, files, dry_run)
    content = OmegaConf.create({"defaults": ["marl_trainer", "_self_"], **recipe})
    if named := OmegaConf.select(content, "marl.plugins"):  # relative to the working directory: the recipe has no file
        content.marl.plugins = [str(Path(file).absolute()) for file in ([named] if isinstance(named, str) else named)]
    name = re.sub(r"[^A-Za-z0-9.=+-]+", "-", str(OmegaConf.select(content, "trainer.experiment_name") or "team"))
    with tempfile.TemporaryDirectory() as folder:
        OmegaConf.save(content, Path(folder) / f"{name}.yaml")
        plan = plan_run(Path(folder) / f"{name}.yaml", overrides, files, dry_run)
    plan.config.marl.run.recipe = None  # the file is gone
    return plan


def override_lines(overrides: Overrides, backend: str | None = None) -> list[str]:
    """Overrides as a list of `key=value`, with that of the backend."""
    if backend is not None:
        return [*override_lines(overrides), f"marl.run.backend={_written(backend)}"]
    if isinstance(overrides, Mapping):
        return [f"{key}={_written(value)}" for key, value in overrides.items()]
    return list(overrides)


def _written(value: Any) -> str:
    """A value in the grammar of Hydra's overrides."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str | os.PathLike):
        # in quotes, a backslash is special only where a quote follows
        text = re.sub(r"(\\*)('|$)", lambda end: 2 * end[1] + (r"\'" if end[2] else ""), str(value))
        return f"'{text}'"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{_written(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_written, value)) + "]"
    return str(value)


def use_installed_verl() -> None:
    """Search the working directory last if it has another verl than the installed one, and not at all in children."""
    here = Path.cwd()
    if not (here / "verl" / "__init__.py").is_file():
        return
    elsewhere = [path for path in sys.path if _folder(path) != here]
    if PathFinder.find_spec("verl", elsewhere) is None:
        return  # this checkout is the installed one
    sys.path[:] = [*elsewhere, str(here)]
    os.environ[SAFE_PATH] = "1"
    if paths := os.environ.get("PYTHONPATH"):
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths.split(os.pathsep) if _folder(path) != here)


def _folder(path: str) -> Path:
    return Path(path or ".").resolve()
