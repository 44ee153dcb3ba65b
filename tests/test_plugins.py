"""Plugins: discovery of real distributions, and every mistake a plugin author makes."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import marl_verl
from marl_verl import hookspecs, plugins
from marl_verl.cli import plugins as command
from marl_verl.cli.plugins import add_arguments
from marl_verl.errors import MarlError
from marl_verl.hookspecs import KINDS, hookimpl

Install = Callable[..., None]
HEADER = "from marl_verl.hookspecs import hookimpl\n"
GAMES = """
@hookimpl
def marl_register_tasks(register):
    register("sokoban", "games_pkg.parts:Sokoban")
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a distribution for one test: metadata, entry points and one module."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def write(code: str, name: str = "games", version: str = "1.2", points: dict[str, str] | None = None) -> None:
        module = f"{name.replace('-', '_')}_plugin"
        (tmp_path / f"{module}.py").write_text(HEADER + textwrap.dedent(code))
        info = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        lines = [f"{point} = {target}" for point, target in (points or {name: module}).items()]
        (info / "entry_points.txt").write_text("\n".join(["[marl_verl]", *lines]) + "\n")
        importlib.invalidate_caches()

    yield write
    for module in set(sys.modules) - before:
        if module.endswith("_plugin") or module.startswith("games_pkg"):
            del sys.modules[module]


def test_the_builtin_parts_come_through_the_hooks() -> None:
    found = plugins.discover("")
    assert found.names("tasks") == found.names("workflows") == ["inventory", "split-plan-path"]
    assert found.names("algorithms") == ["gigpo", "grpo", "grpo-trajectory-mean", "ippo", "mappo", "reinforce++"]
    assert found.names("samplers") == ["best-of", "independent"]
    assert found.fingerprint() == (f"marl-verl=={marl_verl.__version__}:builtin",)
    assert all(isinstance(entry.target, str) for kind in KINDS for entry in found.entries(kind))  # all lazy
    for kind, name in (
        ("algorithms", "grpo"),
        ("algorithms", "gigpo"),
        ("credits", "none"),
        ("rewards", "valid-answer"),
    ):
        assert found.get(kind, name) is found.get(kind, name)


def test_an_installed_distribution_is_found_with_its_provenance(install: Install) -> None:
    install(GAMES)
    found = plugins.discover()
    entry = found.entry("tasks", "sokoban")
    assert (entry.distribution, entry.version, entry.plugin) == ("games", "1.2", "games")
    assert "games==1.2:games" in found.fingerprint()
    assert "sokoban" in found.names("tasks")
    record = next(r for r in found.describe() if r["plugin"] == "games")
    assert record == {
        "plugin": "games",
        "distribution": "games",
        "version": "1.2",
        "target": "games_plugin",
        "enabled": True,
        "hooks": ["marl_register_tasks"],
        "names": {"tasks": {"sokoban": "games_pkg.parts:Sokoban"}},
    }
    json.dumps(found.describe())


def test_modules_classes_and_instances_are_plugins(install: Install) -> None:
    install(
        """
        class AsClass:
            @hookimpl
            def marl_register_rewards(self, register):
                register("by-class", len)

        class AsInstance:
            def __init__(self, name):
                self.name = name

            @hookimpl
            def marl_register_rewards(self, register):
                register(self.name, len)

            @staticmethod
            @hookimpl
            def marl_step_finished(step):
                seen.append(step)

        seen = []
        one = AsInstance("by-instance")

        @hookimpl
        def marl_register_rewards(register):
            register("by-module", len)
        """,
        points={"m": "games_plugin", "c": "games_plugin:AsClass", "i": "games_plugin:one"},
    )
    found = plugins.discover()
    for name in ("by-module", "by-class", "by-instance"):
        assert found.get("rewards", name) is len
    found.hook.marl_step_finished(step=3, metrics={})
    assert sys.modules["games_plugin"].seen == [3]


def test_an_unhashable_instance_is_a_plugin_too() -> None:
    from dataclasses import dataclass

    @dataclass
    class Mine:
        name: str

        @hookimpl
        def marl_register_rewards(self, register: hookspecs.Register) -> None:
            register(self.name, len)

    found = plugins.assemble({"a": Mine("one"), "b": Mine("two")})
    assert found.names("rewards") == ["one", "two", "valid-answer"]
    assert found.entry("rewards", "two").plugin == "b"


# Limits


def test_the_variable_limits_what_is_loaded(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(GAMES)
    install("raise RuntimeError('must not be imported')", name="broken")
    found = plugins.discover("games, ")
    assert "games==1.2:games" in found.fingerprint()
    assert "broken" in {source.plugin for source in found.disabled}
    assert {s.plugin for s in plugins.discover("").loaded} == {"builtin"}
    with pytest.raises(MarlError, match=r"MARL_VERL_PLUGINS names 'gamse', .* did you mean 'games'"):
        plugins.discover("gamse")

    monkeypatch.setenv("MARL_VERL_PLUGINS", "games")
    plugins.load.cache_clear()
    try:
        assert plugins.load().names("tasks") == found.names("tasks")
        assert plugins.load() is plugins.load()
    finally:
        plugins.load.cache_clear()


def test_processes_with_other_plugins_are_told(install: Install) -> None:
    mine = plugins.discover("").fingerprint()
    install(GAMES)
    theirs = plugins.discover("games").fingerprint()
    plugins.check_same(mine, mine, "rollout worker 0")
    with pytest.raises(MarlError, match=r"are not the driver's: only rollout worker 3 has games==1\.2:games: install"):
        plugins.check_same(mine, theirs, "rollout worker 3")


# Mistakes


def test_a_name_registered_twice_names_both_distributions(install: Install) -> None:
    install(GAMES)
    install(GAMES, name="more-games", version="0.3")
    with pytest.raises(MarlError) as error:
        plugins.discover()
    assert str(error.value) == (
        "task 'sokoban' is registered twice: by games 1.2 (plugin 'games') and by more-games 0.3 (plugin 'more-games')"
    )


def test_a_builtin_name_cannot_be_taken(install: Install) -> None:
    install("@hookimpl\ndef marl_register_algorithms(register): register('grpo', object())")
    with pytest.raises(MarlError, match=r"algorithm 'grpo' is registered twice: by marl-verl .* and by games 1\.2"):
        plugins.discover()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "@hookimpl\ndef marl_register_task(register): ...",
            ["'marl_register_task'", "did you mean 'marl_register_tasks'"],
        ),
        ("def marl_episod_finished(episode): ...", ["did you mean 'marl_episode_finished'"]),
        ("def marl_register_tasks(register): ...", ["'marl_register_tasks'", "'@hookimpl'"]),
        ("@hookimpl\ndef marl_register_tasks(registry): ...", ["no valid plugin", "registry"]),
        ("@hookimpl(specname='marl_nothing')\ndef mine(register): ...", ["no valid plugin", "marl_nothing"]),
        ("import nowhere_at_all", ["'games_plugin'", "ModuleNotFoundError", "nowhere_at_all"]),
        ("raise ValueError('no\\nlicence')", ["'games_plugin'", "ValueError: no licence"]),
        ("def def", ["SyntaxError"]),
        ("x = 1", ["implements no hook"]),
        ("@hookimpl\ndef marl_register_tasks(register): 1 / 0", ["marl_register_tasks", "ZeroDivisionError"]),
        ("@hookimpl\ndef marl_register_tasks(register): register('a b', len)", ["'a b'", "letters"]),
        (
            "@hookimpl\ndef marl_register_tasks(register): register('a', 'pkg.mod')",
            ["'pkg.mod'", "package.module:attribute"],
        ),
        ("@hookimpl\ndef marl_register_tasks(register): register('a', None)", ["target is None"]),
    ],
)
def test_a_broken_plugin_is_an_error_at_load(install: Install, code: str, said: list[str]) -> None:
    install(code)
    with pytest.raises(MarlError) as error:
        plugins.discover()
    for part in ["games 1.2", "plugin 'games'", *said]:
        assert part in str(error.value)
    assert "\n" not in str(error.value)


def test_an_entry_point_to_a_missing_attribute(install: Install) -> None:
    install(GAMES, points={"games": "games_plugin:Gone"})
    with pytest.raises(MarlError, match=r"games 1\.2 \(plugin 'games'\) cannot be loaded from 'games_plugin:Gone'"):
        plugins.discover()


def test_one_module_under_two_entry_points(install: Install) -> None:
    install("@hookimpl\ndef marl_step_finished(step): ...", points={"a": "games_plugin", "b": "games_plugin"})
    with pytest.raises(MarlError, match=r"plugin 'b'\) is no valid plugin: ValueError: Plugin already registered"):
        plugins.discover()


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (None, ["ModuleNotFoundError", "games_pkg"]),
        ("import nowhere_at_all", ["nowhere_at_all"]),
        ("class Sokoban2: ...", ["no 'Sokoban'", "did you mean 'Sokoban2'"]),
    ],
)
def test_a_lazy_target_is_imported_late_and_told_if_it_cannot(
    install: Install, tmp_path: Path, parts: str | None, said: list[str]
) -> None:
    install(GAMES)
    if parts is not None:
        (tmp_path / "games_pkg").mkdir()
        (tmp_path / "games_pkg" / "__init__.py").touch()
        (tmp_path / "games_pkg" / "parts.py").write_text(parts)
    found = plugins.discover()  # nothing imported yet
    assert "games_pkg" not in sys.modules
    with pytest.raises(MarlError) as error:
        found.get("tasks", "sokoban")
    for part in ["task 'sokoban'", "games 1.2", "'games_pkg.parts:Sokoban'", *said]:
        assert part in str(error.value)


def test_a_lazy_target_may_be_an_attribute_of_a_class(install: Install, tmp_path: Path) -> None:
    register = "@hookimpl\ndef marl_register_rewards(register): register('r', 'games_plugin:Rewards.short')"
    install(f"{register}\nclass Rewards:\n    short = 5")
    assert plugins.discover().get("rewards", "r") == 5


def test_unknown_names_and_kinds_offer_the_nearest() -> None:
    found = plugins.discover("")
    with pytest.raises(MarlError, match=r"unknown task 'inventry': did you mean 'inventory'"):
        found.get("tasks", "inventry")
    with pytest.raises(MarlError, match=r"unknown kind of part 'task': did you mean 'tasks'"):
        found.get("task", "inventory")
    with pytest.raises(MarlError, match=r"unknown loss 'x': valid: gspo, "):
        found.entry("losses", "x")


# The examples in the documentation


def example(hook: str) -> str:
    match = re.search(r"Example::\n\n(.*)", textwrap.dedent(getattr(hookspecs, hook).__doc__ or ""), re.DOTALL)
    assert match, f"{hook} has no example"
    return textwrap.dedent(match[1])


def run_example(hook: str) -> Any:
    module = types.ModuleType(f"example_of_{hook}")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        exec(compile(example(hook), hook, "exec"), module.__dict__)
    finally:
        del sys.modules[module.__name__]
    return module


def test_every_kind_has_a_hook_and_the_observers_are_there() -> None:
    registering = {f"marl_register_{kind}" for kind in KINDS}
    assert registering | {"marl_episode_finished", "marl_step_finished"} == plugins.HOOKS


@pytest.mark.parametrize("hook", sorted(plugins.HOOKS))
def test_the_example_of_each_hook_is_a_plugin(hook: str) -> None:
    found = plugins.assemble({"example": run_example(hook)})
    (record,) = [r for r in found.describe() if r["plugin"] == "example"]
    assert record["hooks"] == [hook]
    if hook.startswith("marl_register_"):
        assert list(record["names"]) == [hook.removeprefix("marl_register_")]


def test_the_examples_do_what_they_say() -> None:
    from marl_verl.advantage import RowTable
    from marl_verl.options import build

    sums = build(plugins.assemble({"e": run_example("marl_register_tasks")}).get("tasks", "sums"), {"largest": 5}, "o")
    train, test = sums.generate("train", 4, 0), sums.generate("test", 4, 0)
    assert not {t.id for t in train} & {t.id for t in test}
    assert sums.score(train[2], " 6 ") == 1.0

    found = plugins.assemble(
        {"a": run_example("marl_register_advantages"), "b": run_example("marl_register_algorithms")}
    )
    rows = [
        {
            "uid": "q",
            "session": s,
            "index": 0,
            "turn": 0,
            "agent": "a",
            "rewards": {"team": float(s), "role": 0.0},
            "length": 1,
        }
        for s in range(3)
    ]
    table = RowTable.from_rows(rows)
    assert found.get("advantages", "centred").compute(table, table.rewards["team"]).advantage.tolist() == [
        -1.0,
        0.0,
        1.0,
    ]
    assert found.get("algorithms", "role-grpo").compute(table).advantage.tolist() == pytest.approx([-1, 0, 1], abs=1e-5)

    watch, steps = run_example("marl_episode_finished"), run_example("marl_step_finished")
    found = plugins.assemble({"w": watch, "s": steps})
    found.hook.marl_episode_finished(episode=types.SimpleNamespace(turns=[1, 2]))
    found.hook.marl_step_finished(step=7, metrics={"train/success": 0.5})
    assert (watch.lengths, steps.curve) == ([2], [(7, 0.5)])


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
    install(GAMES + "\n@hookimpl\ndef marl_step_finished(step): ...")
    install("raise RuntimeError", name="other", version="3")
    monkeypatch.setenv("MARL_VERL_PLUGINS", "games")
    text = show(capsys)
    assert "games   games 1.2   games_plugin" in text
    assert re.search(r"tasks +sokoban\n", text)
    assert re.search(r"observes +step_finished", text)
    assert re.search(r"other   other 3 .* disabled", text)
    records = {r["plugin"]: r for r in json.loads(show(capsys, "--json"))}
    assert records["other"]["enabled"] is False
    assert records["builtin"]["names"]["algorithms"]["grpo"] == "marl_verl.algorithms.grpo:GRPO"


def test_listing_plugins_imports_nothing_heavy() -> None:
    code = (
        "import sys, marl_verl.advantage, marl_verl.cli.plugins, marl_verl.plugins as p\n"
        "p.discover('').get('algorithms', 'grpo')\n"
        "print([m for m in ('torch', 'ray', 'verl', 'vllm', 'transformers', 'pandas', 'scipy') if m in sys.modules])"
    )
    root = str(Path(marl_verl.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=root, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


# The role reward


@pytest.mark.parametrize(
    ("text", "stop", "reward"),
    [
        ("4 2", "completed", 1.0),
        ("4 2", None, 1.0),
        ("4 2", "length", 0.0),
        ("  \n", "completed", 0.0),
        ("", None, 0.0),
    ],
)
def test_valid_answer(text: str, stop: str | None, reward: float) -> None:
    turn = types.SimpleNamespace(action=types.SimpleNamespace(text=text, stop_reason=stop))
    assert plugins.discover("").get("rewards", "valid-answer")(None, turn, None) == reward
