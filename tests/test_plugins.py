"""Plugins: discovery of real distributions, and every mistake a plugin author makes."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import marl_verl
from marl_verl import plugins
from marl_verl.algo.algorithms import Algorithm
from marl_verl.cli import plugins as command
from marl_verl.cli.plugins import add_arguments
from marl_verl.errors import MarlError, MarlWarning
from marl_verl.plugins import KINDS, Registry
from tests.sites import add_distribution

Install = Callable[..., None]
HEADER = "from marl_verl import hookimpl\n"
PUZZLES = """
@hookimpl
def marl_register(registry):
    registry.task("rubik", "puzzles_pkg.parts:Rubik")
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a distribution for one test: metadata, entry points and one module."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def write(code: str, name: str = "puzzles", version: str = "1.2", points: dict[str, str] | None = None) -> None:
        module = f"{name.replace('-', '_')}_plugin"
        (tmp_path / f"{module}.py").write_text(HEADER + textwrap.dedent(code))
        add_distribution(tmp_path, name, points or {name: module}, version)
        importlib.invalidate_caches()

    yield write
    for module in set(sys.modules) - before:
        if module.endswith("_plugin") or module.startswith("puzzles_pkg"):
            del sys.modules[module]


def test_the_builtin_parts_come_through_the_hooks() -> None:
    found = plugins.discover("")
    assert found.names("tasks") == ["function-scored", "verl"]
    assert found.names("workflows") == ["single"]
    assert found.names("algorithms") == [
        *("gdpo", "gigpo", "grpo", "grpo-trajectory-mean", "ippo", "mappo", "reinforce++", "remax")
    ]
    assert found.names("samplers") == ["best-of", "greedy-baseline", "independent"]
    assert found.fingerprint() == (f"marl-verl=={marl_verl.__version__}:builtin",)
    assert all(isinstance(entry.target, str) for kind in KINDS for entry in found.entries(kind))  # all lazy
    for kind, name in (
        ("algorithms", "grpo"),
        ("algorithms", "gigpo"),
        ("rewards", "valid-answer"),
    ):
        assert found.get(kind, name) is found.get(kind, name)


def test_an_installed_distribution_is_found_with_its_provenance(install: Install) -> None:
    install(PUZZLES)
    found = plugins.discover()
    entry = found.entry("tasks", "rubik")
    assert (entry.distribution, entry.version, entry.source.plugin) == ("puzzles", "1.2", "puzzles")
    assert "puzzles==1.2:puzzles" in found.fingerprint()
    assert "rubik" in found.names("tasks")
    record = next(r for r in found.describe() if r["plugin"] == "puzzles")
    assert record == {
        "plugin": "puzzles",
        "distribution": "puzzles",
        "version": "1.2",
        "target": "puzzles_plugin",
        "enabled": True,
        "error": "",
        "hooks": ["marl_register"],
        "names": {"tasks": {"rubik": "puzzles_pkg.parts:Rubik"}},
    }
    json.dumps(found.describe())


def test_modules_classes_and_instances_are_plugins(install: Install) -> None:
    install(
        """
        class AsClass:
            @hookimpl
            def marl_register(self, registry):
                registry.reward("by-class", len)

        class AsInstance:
            def __init__(self, name):
                self.name = name

            @hookimpl
            def marl_register(self, registry):
                registry.reward(self.name, len)

            @staticmethod
            @hookimpl
            def marl_step_finished(step):
                seen.append(step)

        seen = []
        one = AsInstance("by-instance")

        @hookimpl
        def marl_register(registry):
            registry.reward("by-module", len)
        """,
        points={"m": "puzzles_plugin", "c": "puzzles_plugin:AsClass", "i": "puzzles_plugin:one"},
    )
    found = plugins.discover()
    for name in ("by-module", "by-class", "by-instance"):
        assert found.get("rewards", name) is len
    found.hook.marl_step_finished(step=3, metrics={})
    assert sys.modules["puzzles_plugin"].seen == [3]


# Limits


def test_the_variable_limits_what_is_loaded(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(PUZZLES)
    install("raise RuntimeError('must not be imported')", name="broken")
    found = plugins.discover("puzzles, ")
    assert "puzzles==1.2:puzzles" in found.fingerprint()
    assert "broken" in {source.plugin for source in found.disabled}
    assert {s.plugin for s in plugins.discover("").loaded} == {"builtin"}
    with pytest.raises(MarlError, match=r"MARL_VERL_PLUGINS names 'puzzels', .* did you mean 'puzzles'"):
        plugins.discover("puzzels")

    monkeypatch.setenv("MARL_VERL_PLUGINS", "puzzles")
    plugins.load.cache_clear()
    try:
        assert plugins.load().names("tasks") == found.names("tasks")
        assert plugins.load() is plugins.load()
    finally:
        plugins.load.cache_clear()


def test_processes_with_other_plugins_raise(install: Install) -> None:
    mine = plugins.discover("").fingerprint()
    install(PUZZLES)
    theirs = plugins.discover("puzzles").fingerprint()
    plugins.check_same(mine, mine, "rollout worker 0")
    with pytest.raises(
        MarlError, match=r"differ from the driver's: only rollout worker 3 has puzzles==1\.2:puzzles\. Install"
    ):
        plugins.check_same(mine, theirs, "rollout worker 3")


# Mistakes


def test_a_name_registered_twice_is_an_error_where_it_is_used(install: Install) -> None:
    install(PUZZLES)
    install(PUZZLES + "    registry.task('chess', len)", name="z-puzzles", version="0.3")
    found = plugins.discover()
    assert found.get("tasks", "chess") is len
    assert "rubik" in found.names("tasks")
    with pytest.raises(MarlError) as error:
        found.get("tasks", "rubik")
    assert str(error.value) == (
        "task 'rubik' is registered by puzzles 1.2 (plugin 'puzzles') and by z-puzzles 0.3 (plugin 'z-puzzles'): "
        "write 'puzzles:rubik' or 'z-puzzles:rubik'"
    )


def test_a_distribution_selects_one_of_two(install: Install) -> None:
    install(PUZZLES.replace('"puzzles_pkg.parts:Rubik"', "len"))
    install(PUZZLES.replace('"puzzles_pkg.parts:Rubik"', "max"), name="z-puzzles", version="0.3")
    found = plugins.discover()
    assert found.get("tasks", "puzzles:rubik") is len
    assert found.get("tasks", "z-puzzles:rubik") is max
    assert found.entry("tasks", "marl-verl-tiny:inventory") == found.entry("tasks", "inventory")
    with pytest.raises(MarlError, match=r"unknown task 'z-puzzle:rubik': did you mean 'z-puzzles:rubik'"):
        found.get("tasks", "z-puzzle:rubik")


def test_a_builtin_name_has_to_be_selected_too(install: Install) -> None:
    install("@hookimpl\ndef marl_register(registry): registry.algorithm('grpo', object())")
    found = plugins.discover()
    with pytest.raises(MarlError, match=r"algorithm 'grpo' is registered by marl-verl .* and by puzzles 1\.2"):
        found.get("algorithms", "grpo")
    assert isinstance(found.get("algorithms", "marl-verl:grpo"), Algorithm)


REGISTER = "@hookimpl\ndef marl_register(registry): "


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("@hookimpl\ndef marl_regster(registry): ...", ["'marl_regster'", "did you mean 'marl_register'"]),
        ("def marl_register(registry): ...", ["'marl_register'", "'@hookimpl'"]),
        ("@hookimpl\ndef marl_step_finished(step, metric): ...", ["not a valid plugin", "metric"]),
        ("import nowhere_at_all", ["'puzzles_plugin'", "ModuleNotFoundError", "nowhere_at_all"]),
        ("raise SystemExit(3)", ["'puzzles_plugin'", "SystemExit: 3"]),
        ("x = 1", ["implements no hook"]),
        (f"{REGISTER}1 / 0", ["marl_register", "ZeroDivisionError"]),
        (f"{REGISTER}registry.task('a b', len)", ["'a b'", "letters"]),
        (f"{REGISTER}registry.task('a', 'pkg.mod')", ["'pkg.mod'", "package.module:attribute"]),
        (f"{REGISTER}registry.task('a', None)", ["target is None"]),
        (f"{REGISTER}[registry.task('a', len) for _ in range(2)]", ["task 'a'", "registered twice by the same"]),
    ],
)
def test_a_broken_plugin_is_a_warning_until_a_name_is_missing(install: Install, code: str, message: list[str]) -> None:
    install(code)
    found = plugins.discover()
    (source,) = found.broken
    assert source.plugin == "puzzles"
    assert found.get("tasks", "inventory")
    assert found.names("tasks") == plugins.discover("").names("tasks") or "at-plan-path" in found.names("tasks")
    with pytest.raises(MarlError) as error:
        found.get("tasks", "rubik")
    for part in ["unknown task 'rubik'", "cannot be loaded", "puzzles 1.2", "plugin 'puzzles'", *message]:
        assert part in str(error.value)
    assert "\n" not in str(error.value)
    (record,) = [record for record in found.describe() if record["plugin"] == "puzzles"]
    assert record["error"] == found.broken[source]
    assert not record["names"]
    plugins.load.cache_clear()
    try:
        with pytest.warns(MarlWarning, match=re.escape(found.broken[source])):
            plugins.load()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            plugins.load()  # once
    finally:
        plugins.load.cache_clear()


def test_a_plugin_that_is_handed_in_may_not_be_broken() -> None:
    with pytest.raises(MarlError, match=r"in-memory 0 \(plugin 'mine'\) implements no hook"):
        plugins.assemble({"mine": object()})


def test_a_plugin_that_fails_after_a_name_registers_nothing(install: Install) -> None:
    install(PUZZLES + "    raise ValueError('late')")
    with pytest.raises(MarlError, match=r"unknown task 'rubik'.*failed in marl_register: ValueError: late"):
        plugins.discover().get("tasks", "rubik")


def test_the_content_of_a_plugin_is_hashed(install: Install, tmp_path: Path) -> None:
    install(PUZZLES)
    install("x = 1", name="solo")
    (tmp_path / "puzzles_pkg").mkdir()
    part = tmp_path / "puzzles_pkg" / "parts.py"
    part.write_text("one")
    package = plugins.Source("p", "puzzles", "1", "puzzles_pkg.parts:Plugin")
    before = plugins.content_of(package)
    assert len(before) == 64
    part.write_text("two")
    plugins.content_of.cache_clear()
    changed = plugins.content_of(package)
    assert changed != before
    (tmp_path / "puzzles_pkg" / "inner").mkdir()
    (tmp_path / "puzzles_pkg" / "inner" / "rules.py").write_text("one")
    plugins.content_of.cache_clear()
    assert plugins.content_of(package) not in (before, changed)
    assert len(plugins.content_of(plugins.Source("p", "solo", "1", "solo_plugin"))) == 64
    assert plugins.content_of(plugins.Source("p", "in-memory", "0", "<object>")) == ""
    assert plugins.content_of(plugins.Source("p", "file", "0", "solo_plugin", "abc")) == "abc"
    known = plugins.discover("puzzles")  # its parts are in puzzles_pkg, its entry point in puzzles_plugin
    (puzzles,) = [source for source in known.loaded if source.distribution == "puzzles"]
    whole = known.content(puzzles)
    part.write_text("three")
    plugins.content_of.cache_clear()
    assert known.content(puzzles) != whole
    found = {record["plugin"]: record for record in plugins.discover("puzzles").describe(content=True)}
    assert len(found["puzzles"]["content"]) == len(found["builtin"]["content"]) == 64
    assert found["solo"]["content"] == ""  # not loaded


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (None, ["ModuleNotFoundError", "puzzles_pkg"]),
        ("import nowhere_at_all", ["nowhere_at_all"]),
        ("class Rubik2: ...", ["no attribute 'Rubik'", "did you mean 'Rubik2'"]),
    ],
)
def test_a_lazy_target_is_imported_on_use_and_raises_if_it_cannot(
    install: Install, tmp_path: Path, parts: str | None, message: list[str]
) -> None:
    install(PUZZLES)
    if parts is not None:
        (tmp_path / "puzzles_pkg").mkdir()
        (tmp_path / "puzzles_pkg" / "__init__.py").touch()
        (tmp_path / "puzzles_pkg" / "parts.py").write_text(parts)
    found = plugins.discover()  # nothing imported yet
    assert "puzzles_pkg" not in sys.modules
    with pytest.raises(MarlError) as error:
        found.get("tasks", "rubik")
    for part in ["task 'rubik'", "puzzles 1.2", "'puzzles_pkg.parts:Rubik'", *message]:
        assert part in str(error.value)


def test_a_lazy_target_may_be_an_attribute_of_a_class(install: Install, tmp_path: Path) -> None:
    register = f"{REGISTER}registry.reward('r', 'puzzles_plugin:Rewards.short')"
    install(f"{register}\nclass Rewards:\n    short = 5")
    assert plugins.discover().get("rewards", "r") == 5


def test_unknown_names_and_kinds_offer_the_nearest() -> None:
    tiny = plugins.discover("tiny")
    with pytest.raises(MarlError, match=r"unknown task 'inventry': did you mean 'inventory'"):
        tiny.get("tasks", "inventry")
    with pytest.raises(MarlError, match=r"unknown kind of part 'task': did you mean 'tasks'"):
        tiny.get("task", "inventory")
    with pytest.raises(MarlError, match=r"unknown loss 'x': valid: gspo, "):
        tiny.entry("losses", "x")


# The registry


def test_every_kind_has_a_method() -> None:
    registry = Registry(plugins.Source("p", "d", "1", "t"))
    methods = [name for name in vars(Registry) if not name.startswith("_") and callable(getattr(Registry, name))]
    for name in methods:
        more = ("package.module", "its help") if name == "command" else ("package.module:attribute",)
        getattr(registry, name)(f"any-{name}", *more)
    assert {kind for kind, _ in registry.entries} == set(KINDS)
    assert len(methods) == len(KINDS)
    assert {"marl_register", "marl_episode_finished", "marl_step_finished"} == plugins.HOOKS


# The command


def show(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    import argparse

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    plugins.load.cache_clear()
    try:
        assert command.run(parser.parse_args(flags)) == 0
    finally:
        plugins.load.cache_clear()
    return capsys.readouterr().out


def test_the_command_lists_plugins(
    install: Install, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(PUZZLES + "\n@hookimpl\ndef marl_step_finished(step): ...")
    install("raise RuntimeError", name="other", version="3")
    monkeypatch.setenv("MARL_VERL_PLUGINS", "puzzles")
    text = show(capsys)
    assert "puzzles   puzzles 1.2   puzzles_plugin" in text
    assert re.search(r"tasks +rubik\n", text)
    assert re.search(r"observes +step_finished", text)
    assert re.search(r"other   other 3 .* disabled", text)
    monkeypatch.setenv("MARL_VERL_PLUGINS", "puzzles,other")
    assert re.search(r"other   other 3 .*   broken: other 3 .* RuntimeError", show(capsys))
    monkeypatch.setenv("MARL_VERL_PLUGINS", "puzzles")
    records = {r["plugin"]: r for r in json.loads(show(capsys, "--json"))}
    assert records["other"]["enabled"] is False
    assert records["builtin"]["names"]["algorithms"]["grpo"] == "marl_verl.algo.algorithms.presets:GRPO"


def test_the_command_lists_all_problems(
    install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unknown names, broken plugins and broken files together; the printed command leaves the good ones."""
    install(PUZZLES)
    install("raise RuntimeError", name="other")
    install("raise KeyError", name="third")
    (tmp_path / "my_team.py").write_text("1 / 0")
    monkeypatch.setenv("MARL_VERL_PLUGINS", "puzzles,other,third,puzzels")
    try:
        text = show(capsys, "--plugin", str(tmp_path / "my_team.py"))
    finally:
        plugins.use_files([])
    assert "puzzels   unknown unknown   MARL_VERL_PLUGINS   broken: MARL_VERL_PLUGINS names 'puzzels'" in text
    assert "did you mean 'puzzles'" in text
    for name in ("other   other", "third   third", "my_team   my_team.py"):
        assert re.search(rf"^{name} .*broken: ", text, re.MULTILINE)
    command = text.splitlines()[-1].partition(": ")[2]
    assert command == "export MARL_VERL_PLUGINS=puzzles"


def test_the_command_shows_a_part(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install(PUZZLES)
    sampler = show(capsys, "greedy-tree")
    assert sampler.startswith("sampler greedy-tree   marl-verl-at-grpo ")
    assert "Sample one tree per task." in sampler
    assert re.search(r"options \(marl\.sampler\.options\)\n +option +default +type\n", sampler)
    assert re.search(r" candidates +8 +a whole number >= 1( and <= \d+)?\n", sampler)
    algorithm = show(capsys, "sharp")
    assert algorithm.startswith("sharp   marl-verl-sharp ")  # the plugin of that name, then its parts
    assert re.search(r" credit\.unit +agent +one of 'agent', 'act'\n", algorithm)
    assert re.search(r" advantage\.baseline +mean +Baseline\n", algorithm)
    assert "broken: task 'rubik' of puzzles 1.2" in show(capsys, "rubik")
    task, workflow = json.loads(show(capsys, "inventory", "--json"))
    assert (task["kind"], workflow["kind"]) == ("task", "workflow")
    assert task["options"]["length"]["default"] == 4
    with pytest.raises(MarlError, match="unknown part or plugin 'grpoo': did you mean 'grpo'"):
        show(capsys, "grpoo")


def test_every_part_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    known = plugins.load()
    for name in {name for kind in KINDS for name in known.names(kind)}:
        assert "broken" not in show(capsys, name).splitlines()[0]


def test_listing_plugins_imports_nothing_heavy() -> None:
    code = (
        "import sys, marl_verl.algo.advantage, marl_verl.cli.plugins, marl_verl.plugins as p\n"
        "p.discover('').get('algorithms', 'grpo')\n"
        "print([m for m in ('torch', 'ray', 'verl', 'vllm', 'transformers', 'pandas', 'scipy') if m in sys.modules])"
    )
    root = str(Path(marl_verl.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=root, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
