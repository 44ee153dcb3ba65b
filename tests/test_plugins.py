"""Plugins: discovery of real distributions, and every mistake a plugin author makes."""

import importlib
import importlib.metadata
import re
import sys
import textwrap
import tomllib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

import marl_verl
from marl_verl import plugins
from marl_verl.errors import MarlError, MarlWarning
from marl_verl.extensions import extension, missing_extras
from marl_verl.plugins import loading, registry
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


def test_an_installed_distribution_is_found_with_its_provenance(install: Install) -> None:
    install(PUZZLES)
    found = plugins.discover()
    entry = found.entry("tasks", "rubik")
    assert (entry.source.distribution, entry.source.version, entry.source.plugin) == ("puzzles", "1.2", "puzzles")
    assert "puzzles==1.2:puzzles" in found.fingerprint()
    assert "rubik" in found.names("tasks")
    record = next(r for r in found.describe() if r["plugin"] == "puzzles")
    assert record["names"] == {"tasks": {"rubik": "puzzles_pkg.parts:Rubik"}}


def test_a_name_registered_twice_is_an_error_where_it_is_used(install: Install) -> None:
    install(PUZZLES)
    install(PUZZLES + "    registry.script('chess', len)", name="z-puzzles", version="0.3")
    found = plugins.discover()
    assert found.get("scripts", "chess") is len
    assert "rubik" in found.names("tasks")
    with pytest.raises(MarlError) as error:
        found.get("tasks", "rubik")
    assert str(error.value) == (
        "task 'rubik' is registered by puzzles 1.2 (plugin 'puzzles') and by z-puzzles 0.3 (plugin 'z-puzzles'): "
        "write 'puzzles:rubik' or 'z-puzzles:rubik'"
    )


REGISTER = "@hookimpl\ndef marl_register(registry): "


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("@hookimpl\ndef marl_regster(registry): ...", ["'marl_regster'", "did you mean 'marl_register'"]),
        ("raise SystemExit(3)", ["SystemExit: 3"]),
        ("import nowhere_at_all", ["'puzzles_plugin'", "ModuleNotFoundError", "nowhere_at_all"]),
        (f"{REGISTER}1 / 0", ["ZeroDivisionError", "line 3"]),
        (f"{REGISTER}[registry.task('a', len) for _ in range(2)]", ["task 'a'", "registered twice by the same"]),
    ],
)
def test_a_broken_plugin_is_a_warning_until_a_name_is_missing(install: Install, code: str, message: list[str]) -> None:
    install(code)
    found = plugins.discover()
    (source,) = found.broken
    assert source.plugin == "puzzles"
    assert found.get("tasks", "inventory")
    assert "plan-path" in found.names("tasks")
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


def test_the_content_of_a_plugin_is_hashed(install: Install, tmp_path: Path) -> None:
    install(PUZZLES)
    (tmp_path / "puzzles_pkg").mkdir()
    part = tmp_path / "puzzles_pkg" / "parts.py"
    known = plugins.discover("puzzles")  # its parts are in puzzles_pkg, its entry point in puzzles_plugin
    (puzzles,) = [source for source in known.loaded if source.distribution == "puzzles"]
    contents = set()
    for text in ("one", "two"):
        part.write_text(text)
        loading.content_of.cache_clear()
        contents.add(known.content(puzzles))
    assert {len(content) for content in contents} == {64}
    assert len(contents) == 2
    assert loading.content_of(registry.Source("p", "in-memory", "0", "<object>")) == ""
    assert loading.content_of(registry.Source("p", "file", "0", "solo_plugin", "abc")) == "abc"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (None, "No module named 'puzzles_pkg'"),
        ("class Rubik2: ...", "no attribute 'Rubik'"),
        ("class Rubik: ...", "must be a subclass of TaskSet, not <class 'puzzles_pkg.parts.Rubik'>"),
    ],
)
def test_a_lazy_target_is_imported_on_use(install: Install, tmp_path: Path, parts: str | None, message: str) -> None:
    install(PUZZLES)
    if parts is not None:
        (tmp_path / "puzzles_pkg").mkdir()
        (tmp_path / "puzzles_pkg" / "__init__.py").touch()
        (tmp_path / "puzzles_pkg" / "parts.py").write_text(parts)
    found = plugins.discover()  # nothing imported yet
    assert "puzzles_pkg" not in sys.modules
    with pytest.raises(MarlError, match=f"task 'rubik' of puzzles 1.2 .*{message}"):
        found.get("tasks", "rubik")


# The extras: the names that each one adds, and the error without it


ROOT = Path(__file__).parents[1]
EXTRAS = [path.parent.name.replace("_", "-") for path in sorted(ROOT.glob("plugins/*/pyproject.toml"))]


def required(extra: str) -> set[str]:
    """The plugins that `pip install marl-verl[extra]` installs."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][extra]
    own = ROOT / "plugins" / extra.replace("-", "_") / "pyproject.toml"
    lines = [*wanted, *tomllib.loads(own.read_text())["project"]["dependencies"]]
    others = [name for line in lines if (match := re.match(r"marl-verl(?:-([\w-]+)|\[([\w,-]+)\])", line))
              for name in (match[1] or match[2]).split(",")]  # fmt: skip
    return {extra, *(name for other in others if other != extra for name in required(other))}


@pytest.mark.parametrize("extra", [name for name in EXTRAS if (ROOT / "recipes" / name.replace("-", "_")).is_dir()])
def test_an_extra_brings_what_its_recipes_name(extra: str) -> None:
    more = {"tiny", "environments"} if extra == "games" else {"tiny"}  # of extra `cpu`; and of two games (README)
    known = plugins.discover(",".join(required(extra) | more))
    for path in (ROOT / "recipes" / extra.replace("-", "_")).glob("*.yaml"):
        marl = yaml.safe_load(path.read_text()).get("marl", {})
        for kind, key in (("tasks", "task"), ("workflows", "workflow"), ("algorithms", "algorithm")):
            name = marl.get(key, {}).get("name")
            assert name in (None, *known.names(kind)) or "plugins" in marl, path


@pytest.mark.parametrize(
    ("kind", "name", "extra"), [("algorithms", "at-grpo-sessions", "at-grpo"), ("commands", "watch", "watch")]
)
def test_a_missing_plugin_names_its_extra(kind: str, name: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: ())
    monkeypatch.setattr(importlib.metadata, "distributions", lambda **_: ())
    monkeypatch.setattr(loading, "missing_extras", missing_extras.__wrapped__)
    known = plugins.discover()
    with pytest.raises(MarlError, match=f"unknown .* '{name}': pip install 'marl-verl\\[{extra}\\]' may register it"):
        known.get(kind, name)
    with pytest.raises(MarlError, match=r"not installed: .*magrpo.* \(pip install 'marl-verl\[all\]'\)"):
        known.get("samplers", "joint-tree")
    extension.cache_clear()
    with pytest.raises(MarlError, match=r"marl_verl.evaluate: pip install 'marl-verl\[evaluation\]' adds it"):
        from marl_verl import evaluate  # noqa: F401
    extension.cache_clear()


@pytest.mark.parametrize("wanted", ["marl-verl>=9", "Marl_Verl<0.1; python_version > '3'"])
def test_a_plugin_for_another_version_is_broken(wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "later_plugin.py").write_text("raise AssertionError('it was imported')")
    add_distribution(tmp_path, "later", {"later": "later_plugin"}, "1.0", [wanted])
    monkeypatch.syspath_prepend(str(tmp_path))
    (message,) = plugins.discover().broken.values()
    assert message.startswith("later 1.0 (plugin 'later') cannot be loaded from 'later_plugin': it requires marl-verl ")
    assert f"but this is {marl_verl.__version__}" in message
    assert "later" not in {source.plugin for source in plugins.discover("").loaded}  # left out, it does no harm
