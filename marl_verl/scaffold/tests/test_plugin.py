"""The plugin: what it registers, that every name leads to its part, and what the observers say."""

from __future__ import annotations

import logging
import subprocess
import sys
from types import SimpleNamespace

import pytest
from marl_verl.hookspecs import KINDS
from marl_verl.plugins import Plugins, assemble

from my_method import plugin


@pytest.fixture
def found() -> Plugins:
    """The built-in parts and this plugin, without the others that may be installed."""
    return assemble({"my-method": plugin})


def test_every_name_leads_to_its_part(found: Plugins) -> None:
    for kind in KINDS:
        mine = [entry for entry in found.entries(kind) if entry.plugin == "my-method"]
        assert mine, f"nothing is registered among {kind}"
        for entry in mine:
            part = found.get(kind, entry.name)
            if kind in ("credits", "mixes", "returns", "baselines", "scales"):
                assert part.name == entry.name  # what `explain` calls it is what a recipe calls it


def test_the_algorithm_names_what_there_is(found: Plugins) -> None:
    algorithm = found.get("algorithms", "my-method")
    assert algorithm.sampler in found.names("samplers")
    assert algorithm.loss in found.names("losses")
    assert set(algorithm.metrics) <= set(found.names("metrics"))


def test_listing_it_imports_no_part() -> None:
    listed = "import sys; import my_method.plugin; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", listed], capture_output=True, text=True, check=True, timeout=60)
    parts = {"numpy", "torch", "my_method.advantage"}
    assert not parts & set(done.stdout.split())


def test_the_observers_say_what_happened(found: Plugins, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    turn = SimpleNamespace(agent="caller", invalid="too short", action=SimpleNamespace(text="4"))
    found.hook.marl_episode_finished(episode=SimpleNamespace(task=SimpleNamespace(id="q"), turns=[turn]))
    found.hook.marl_step_finished(step=3, metrics={"train/success": 0.5})
    assert caplog.messages == ["task q, caller: '4', too short", "step 3: success 0.500"]
