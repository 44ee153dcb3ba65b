"""The extras: the names that each one adds, and the error without it."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
import yaml

import marl_verl
from marl_verl import plugins
from marl_verl.cli.main import main
from marl_verl.errors import MarlError
from marl_verl.plugins import KINDS, VARIABLE, Plugins
from tests.sites import add_distribution

ROOT = Path(__file__).parents[1]
INVENTORY = ROOT / "recipes" / "quickstart" / "inventory.yaml"
EXTRAS = [path.parent.name.replace("_", "-") for path in sorted(ROOT.glob("plugins/*/pyproject.toml"))]
every = pytest.mark.parametrize("extra", EXTRAS)


def names(found: Plugins) -> set[tuple[str, str]]:
    return {(kind, name) for kind in KINDS for name in found.names(kind)}


def brought(extra: str) -> set[tuple[str, str]]:
    (record,) = [record for record in plugins.discover(extra).describe() if record["plugin"] == extra]
    return {(kind, name) for kind, each in record["names"].items() for name in each}


@every
def test_taking_a_plugin_away_takes_its_names_and_nothing_else(extra: str) -> None:
    others = ",".join(name for name in EXTRAS if name != extra)
    assert names(plugins.discover(",".join(EXTRAS))) - names(plugins.discover(others)) == brought(extra)


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
            assert name in (None, *known.names(kind)), path


@every
def test_every_name_is_registered(extra: str) -> None:
    found = plugins.discover(extra)
    for kind, name in brought(extra):
        assert found.get(kind, name) is not None


@pytest.mark.parametrize(
    ("kind", "name", "extra"), [("algorithms", "at-grpo-sessions", "at-grpo"), ("commands", "watch", "watch")]
)
def test_the_name_of_a_missing_plugin_suggests_the_installation(
    kind: str, name: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: ())
    monkeypatch.setattr(importlib.metadata, "distributions", lambda **_: ())
    known = plugins.discover()
    with pytest.raises(MarlError, match=f"unknown .* '{name}': pip install 'marl-verl\\[{extra}\\]' may register it"):
        known.get(kind, name)
    with pytest.raises(MarlError, match=r"not installed: .*magrpo.* \(pip install 'marl-verl\[all\]'\)"):
        known.get("samplers", "joint-tree")


def test_the_name_of_an_excluded_or_broken_plugin_has_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MarlError, match=r"unknown sampler 'joint-tree': .*; MARL_VERL_PLUGINS excludes .*, magrpo, "):
        plugins.discover("").get("samplers", "joint-tree")
    monkeypatch.setattr("marl_verl_sharp.plugin.marl_register", None)
    with pytest.raises(MarlError, match=r"unknown algorithm 'sharp': .* cannot be loaded: marl-verl-sharp .* no hook"):
        plugins.discover().get("algorithms", "sharp")


def test_the_command_line_prints_the_error_with_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(INVENTORY), "marl.algorithm.name=shrap", "--dry-run"]) == 2
    assert capsys.readouterr().err.strip() == "marl-verl: unknown algorithm 'shrap': did you mean 'sharp'?"


@pytest.mark.parametrize("wanted", ["marl-verl>=9", "Marl_Verl<0.1; python_version > '3'"])
def test_a_plugin_for_another_version_is_broken(wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "later_plugin.py").write_text("raise AssertionError('it was imported')")
    add_distribution(tmp_path, "later", {"later": "later_plugin"}, "1.0", [wanted])
    monkeypatch.syspath_prepend(str(tmp_path))
    (message,) = plugins.discover().broken.values()
    assert message.startswith("later 1.0 (plugin 'later') requires marl-verl ")
    assert f"but this is {marl_verl.__version__}" in message
    assert VARIABLE in message
    assert "later" not in {source.plugin for source in plugins.discover("").loaded}  # left out, it does no harm


def test_a_requirement_that_does_not_apply_here_refuses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "now_plugin.py").write_text(
        "from marl_verl import hookimpl\n@hookimpl\ndef marl_register(registry): registry.reward('now', len)\n"
    )
    requires = ["marl-verl>=9; extra == 'later'", f"marl-verl=={marl_verl.__version__}", "numpy>=1"]
    add_distribution(tmp_path, "now", {"now": "now_plugin"}, "1.0", requires)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert plugins.discover().get("rewards", "now") is len
