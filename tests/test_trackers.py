"""Trackers: settings are checked before a run starts, and verl's `Tracking` writes into its run directory, offline."""

import os
from pathlib import Path

import pytest

from marl_verl.run import trackers


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No tracker is set up in the environment, and no one is logged in."""
    for name in list(os.environ):
        if name.startswith(("WANDB_", "MLFLOW_", "TENSORBOARD_", "VERL_FILE")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))


def test_wandb_needs_a_key_unless_it_is_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def offline() -> bool:
        return trackers.variables(tmp_path, ["wandb"]).get("WANDB_MODE") == "offline"

    assert offline()
    (tmp_path / ".netrc").write_text("machine elsewhere.org login user password key\n")
    assert offline()
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password key\n")
    assert not offline()
    (tmp_path / ".netrc").unlink()
    for name, value in (("WANDB_API_KEY", "key"), ("WANDB_MODE", "offline")):
        with monkeypatch.context() as context:
            context.setenv(name, value)
            assert not offline()


@pytest.mark.slow
def test_all_trackers_of_verl_are_known() -> None:
    from verl.utils.tracking import Tracking

    assert set(trackers.TRACKERS) == set(Tracking.supported_backend)
