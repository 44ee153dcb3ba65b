"""Modules are found under the names of before, with a warning."""

import importlib
import sys

import pytest


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("marl_verl.sampling", "marl_verl.algo.sampling"),
        ("marl_verl.advantage.columns", "marl_verl.algo.advantage.columns"),
        ("marl_verl.sandbox", "marl_verl_sandbox"),
        ("marl_verl.gateway", "marl_verl_agents.gateway"),
    ],
)
def test_a_former_name_is_the_same_module(before: str, now: str) -> None:
    sys.modules.pop(before, None)
    with pytest.warns(DeprecationWarning, match=f"{before} is now {now}"):
        module = importlib.import_module(before)
    assert module is importlib.import_module(now)
    assert module.__spec__ is not None
    assert module.__spec__.name == now


def test_a_module_that_never_was_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'marl_verl\.nothing'"):
        importlib.import_module("marl_verl.nothing")
