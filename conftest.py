"""Settings of all tests, also those of the plugins."""

import functools
import gc
import inspect
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import omegaconf._utils
import omegaconf.base
import psutil
import pytest
from hypothesis import settings
from omegaconf import DictConfig

from marl_verl import plugins
from marl_verl.cli.main import COMMANDS, load_command, main, registered
from marl_verl.config import checks, compose

settings.register_profile("marl-verl", deadline=None)  # how long an example takes depends on the machine's load
settings.load_profile("marl-verl")
# config trees are full of cycles: with torch and vLLM imported, Python's default spends a fifth of the time on them
gc.set_threshold(50_000, 20, 50)
FREE = 64 << 30


# What takes longest, in order: begun last, one of them would leave the other workers idle.
FIRST = (
    *("test_local_teams", "test_recipe_variants", "test_local_worker", "test_local_methods", "test_local_runs"),
    *("test_sandbox_attacks", "test_watch", "test_embedded", "test_platform", "test_cli", "test_algorithms"),
    *("test_pages", "test_losses", "test_bad_values", "test_browser", "test_kit", "test_ranks", "test_wheels"),
    *("test_prefixes", "test_cleanup", "test_reasoning_gym", "test_site", "test_new_plugin", "test_frameworks"),
    *("test_sandbox_programs", "test_selftest", "test_compare"),
    *("test_eval_command", "test_export", "test_adapters", "test_local_server", "test_checkpoint"),
)


def pytest_configure(config: pytest.Config) -> None:
    """One thread a process: with more, those of a small matrix mostly wait for each other, on cores that workers share.
    A real run chooses itself."""
    if config.option.markexpr != "e2e":
        os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import few files for the end-to-end tests: half a minute less."""
    if config.option.markexpr != "e2e" or not collection_path.name.startswith("test_"):
        return None
    return "mark.e2e" not in collection_path.read_text(encoding="utf-8") or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {name: number for number, name in enumerate(FIRST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(FIRST)))
    if not os.environ.get("MARL_VERL_LONG"):
        skip = pytest.mark.skip(reason="long: set MARL_VERL_LONG=1")
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(skip)


def pytest_collection_finish() -> None:
    for name in (*COMMANDS, *registered()):  # else one is imported while a test replaces what it takes by name
        load_command(name)
    gc.freeze()  # what all tests have imported


def pytest_unconfigure() -> None:
    gc.freeze()  # else Python looks for garbage for seconds before it exits


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function in a loop of its own, at whose end nothing else may be running."""
    if not inspect.iscoroutinefunction(pyfuncitem.function):
        return None
    from tests.loops import completed

    arguments = inspect.signature(pyfuncitem.function).parameters
    completed(pyfuncitem.function(**{name: pyfuncitem.funcargs[name] for name in arguments}), ticks=3)
    return True


@pytest.fixture(autouse=True, scope="session")
def _enough_memory() -> Iterator[None]:
    """Recipes are checked as on an idle machine: other programs may use the memory of this one."""
    measured = psutil.virtual_memory()._replace(available=FREE, total=2 * FREE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psutil, "virtual_memory", lambda: measured)
        yield


@pytest.fixture(autouse=True, scope="session")
def _interpolations_once() -> Iterator[None]:
    """verl's hundreds of interpolations are parsed once."""
    parse = functools.cache(omegaconf.base.parse)
    with pytest.MonkeyPatch.context() as patch:
        for module in (omegaconf.base, omegaconf._utils):
            patch.setattr(module, "parse", parse)
        yield


@pytest.fixture(autouse=True, scope="session")
def _tasks_once() -> Iterator[None]:
    """The tasks of a set are made once for all plans with the same settings."""
    made: dict[str, Any] = {}
    load = checks.load_tasks

    def once(task_set: Any, section: Any, split: Any, seed: int, few: int | None = None) -> Any:
        if not type(task_set).__module__.startswith("marl_verl"):  # of a plugin file
            return load(task_set, section, split, seed, few)
        files = [Path(section[f"{part}_file"]) for part in ("train", "test") if section.get(f"{part}_file")]
        contents = [file.is_file() and file.read_bytes() for file in files]
        key = repr((type(task_set), section, split, seed, few, contents))
        if key not in made:
            made[key] = load(task_set, section, split, seed, few)
        return list(made[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "load_tasks", once)
        yield


INVENTORY = """
defaults: [marl_trainer, _self_]
marl:
  task: {name: inventory}
  workflow: {name: inventory}"""


@pytest.fixture(scope="module")
def recipe(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the RECIPE of a test's module, or with what it adds to section `marl` of the inventory task."""
    path = tmp_path_factory.mktemp("recipe") / "recipe.yaml"
    text = request.module.RECIPE
    path.write_text(text if "defaults:" in text else INVENTORY + text)
    return path


@pytest.fixture(scope="module")
def composed(recipe: Path) -> DictConfig:
    """The config of that recipe, on a CPU."""
    return compose.compose(recipe, [], hardware="cpu")


@pytest.fixture(autouse=True)
def _no_plugin_files_left() -> Iterator[None]:
    """A plan leaves its plugin files in use."""
    yield
    plugins.use_files([])


@pytest.fixture
def no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models have folders and are not made."""
    folders: Any = lambda specs, progress: [Path("/cache") / spec.agents[0] for spec in specs]  # noqa: E731
    monkeypatch.setattr("marl_verl_tiny.model.ensure_all", folders)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run `marl-verl` with some words, in this process. Returns what it prints."""

    def call(*words: str | Path) -> str:
        capsys.readouterr()
        code, output = main([str(word) for word in words]), capsys.readouterr()
        assert code == 0, output.err
        return output.out

    return call


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run `marl-verl` with some words, which it refuses without a trace. Returns its message of one line. Not in the
    repository, where tests of other processes, and Hypothesis, write at the same time."""
    if Path.cwd() == Path(__file__).parent:
        monkeypatch.chdir(tmp_path)

    def call(*words: str | Path, prints: bool = False) -> str:
        capsys.readouterr()
        before = sorted(Path().rglob("*"))
        assert main([str(word) for word in words]) == 2
        output = capsys.readouterr()
        assert re.fullmatch(r"marl-verl: .*\n", output.err)
        assert bool(output.out) == prints
        assert sorted(Path().rglob("*")) == before
        return output.err

    return call


@pytest.fixture(scope="module")
def verl_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A model's folder, in a process that is one rank of verl on a CPU (tests/verl_actor.py)."""
    pytest.importorskip("verl")
    from tests.verl_actor import cpu_verl, make_model

    folder = tmp_path_factory.mktemp("verl") / "model"
    make_model(folder)
    with cpu_verl():
        yield folder


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A tab of a Chromium (tests/browser.py), which the tests of a module share."""
    from tests.browser import chromium  # few tests need it

    with chromium(tmp_path_factory.mktemp("profile")) as page:
        yield page
