"""Which checkpoints count, that a kill at any moment leaves the last one, and a full disk."""

import errno
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from marl_verl.errors import MarlError
from marl_verl.run.checkpoint import folders
from marl_verl.run.checkpoint import team as checkpoint
from tests.test_fingerprint import run_config


class Saved:
    """A policy or a critic whose state is one text in two files."""

    def __init__(self, content: str) -> None:
        self.content = content

    def save(self, folder: Path, step: int) -> None:
        (folder / "huggingface").mkdir(parents=True)
        for path in (folder / "model.pt", folder / "huggingface" / "config.json"):
            path.write_text(f"{self.content} {step}")

    def load(self, folder: Path) -> None:
        self.content = (folder / "model.pt").read_text()
        assert (folder / "huggingface" / "config.json").read_text() == self.content


class Place:
    """What has a state: the data, the schedule."""

    def __init__(self, state: Any) -> None:
        self.now = state

    def state_dict(self) -> Any:
        return self.now

    def load_state_dict(self, state: Any) -> None:
        self.now = state

    state, restore = state_dict, load_state_dict


class Run(checkpoint.Checkpoints):
    """The checkpoints of a run at a step, and what is in them."""

    def __init__(self, run: Path, step: int = 0, content: str = "", keep: int = 2, small: bool = False) -> None:
        self.step, self.config = step, run_config()
        self.config.marl.checkpoint = {"keep": keep}
        self.config.trainer.resume_mode = "auto"
        names = ["policies/one"] if small else ["policies/one", "policies/two", "critics/team"]
        self.parts = {name: Saved(content) for name in names}
        self.data, self.schedule = Place({"at": step}), Place({"rows": [step]})
        together: Any = lambda calls: [call() for call in calls.values()]  # noqa: E731
        super().__init__(self.config, run, self.parts, self.data, self.schedule, together)

    def save(self) -> None:
        """As a step of the trainer does: the name comes when the step's metrics are stored."""
        self.write(self.step)
        self.commit(self.step)

    @property
    def contents(self) -> set[str]:
        return {part.content for part in self.parts.values()}


def _save(run: Path, step: int, content: str = "", keep: int = 2) -> Path:
    Run(run, step, content, keep).save()
    return run / "checkpoints" / f"step_{step}"


@pytest.mark.slow
def test_everything_comes_back(tmp_path: Path) -> None:
    import random

    import numpy as np
    import torch

    folder = _save(tmp_path, 7, "mine")
    expected = [random.random(), float(np.random.random()), float(torch.rand(()))]
    later = Run(tmp_path)
    assert later.load() == 7
    assert [random.random(), float(np.random.random()), float(torch.rand(()))] == expected
    assert (later.contents, later.data.now) == ({"mine 7"}, {"at": 7})
    assert later.schedule.now == {"rows": [7]}
    team = folders.read(folder)
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert set(team["files"]) == there - {"team.json"}
    assert team["files"]["policies/one/model.pt"]["size"] == len("mine 7")
    assert team["plugins"]["marl-verl"]
    assert any("marl-verl" in plugin for plugin in team["loaded_plugins"])


class Killed(BaseException):
    """The process ends here."""


class _Watch:
    """Counts file system operations; from a chosen one on, none is executed."""

    EVENTS = frozenset({"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"})

    def __init__(self) -> None:
        self.armed = False
        self.count = self.last = 0
        self._lock = threading.Lock()
        sys.addaudithook(self._saw)

    def _saw(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.armed and event in self.EVENTS:
            with self._lock:
                self.count += 1
                dead = self.count > self.last
            if dead:
                raise Killed(event)

    @contextmanager
    def killing_after(self, steps: int) -> Iterator[None]:
        self.count, self.last, self.armed = 0, steps, True
        try:
            yield
        finally:
            self.armed = False


def _small(run: Path, step: int = 0, content: str = "") -> Run:
    """A run of one policy: there are as many kinds of steps, and fewer of each."""
    return Run(run, step, content, small=True)


def _older_and_leftovers(run: Path) -> None:
    for step in (2, 3):
        _small(run, step, "old").save()
    root = run / "checkpoints"
    shutil.copytree(root / "step_2", root / ".old-step_1")
    (root / ".old-step_1" / "policies" / "one" / "model.pt").unlink()
    (root / ".writing-step_4" / "policies").mkdir(parents=True)


@pytest.mark.slow
def test_a_kill_at_any_step_leaves_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch  # noqa: F401 - its files are not opened while we count

    # whose run it is does not matter here, and this disk survives the test
    described = checkpoint.describe(run_config(), 0)
    monkeypatch.setattr(checkpoint, "describe", lambda config, step: {**described, "step": step})
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    begun = tmp_path / "begun"
    _older_and_leftovers(begun)
    had = [folders.step_of(path) for path in folders.complete(begun / "checkpoints")]
    watch, moments, done = _Watch(), 0, False
    while not done:
        run = tmp_path / f"killed-{moments}"
        shutil.copytree(begun, run)
        new = _small(run, 4, "new")
        try:
            with watch.killing_after(moments):
                new.save()
            done = True
        except Killed:
            moments += 1
        # whatever was there still loads, or the new one does
        found = folders.complete(run / "checkpoints")
        assert [folders.intact(path) for path in found] == found
        later = _small(run)
        step = later.load()
        assert step in {4, max(had, default=0)}
        if step:
            assert later.contents <= {f"old {step}", f"new {step}"}
            assert later.data.now == {"at": step}
        # and the resumed run has a clean folder
        _small(run, 4, "newer").save()
        names = os.listdir(run / "checkpoints")
        assert "step_4" in names
        assert len(names) <= 2
        assert not [name for name in names if name.startswith(".")]
        shutil.rmtree(run)
    assert moments > 20  # the steps were seen


# a full disk


FULL = OSError(errno.ENOSPC, "No space left on device")


def _in_a_worker() -> Exception:
    from ray.exceptions import RayTaskError

    return RayTaskError("save_checkpoint", "Traceback ...\nOSError: [Errno 28] No space left on device", FULL)


FAILURES: list[tuple[Callable[[], Exception], int]] = [  # and the bytes that are left
    (_in_a_worker, 1 << 40),
    (lambda: Exception("Error while serializing: I/O error: No space left on device (os error 28)"), 1 << 40),
    (lambda: RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"), 0),
]


@pytest.mark.slow
@pytest.mark.parametrize(("fails", "left"), FAILURES, ids=["worker", "safetensors", "torch"])
@pytest.mark.parametrize("had", [True, False])
def test_a_disk_that_fills_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: Any, left: int, had: bool
) -> None:
    if had:
        _save(tmp_path, 3)

    def save(self: Saved, folder: Path, step: int) -> None:
        folder.mkdir(parents=True)
        (folder / "model.pt").write_text("half")
        raise fails()

    monkeypatch.setattr(Saved, "save", save)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=left))
    remedy = "continue with marl-verl train --resume" if had else "start the run again"
    with pytest.raises(MarlError, match=f"no space left while saving step 4 in .*Free space and {remedy}"):
        Run(tmp_path, 4).save()
    assert os.listdir(tmp_path / "checkpoints") == (["step_3"] if had else [])


@pytest.mark.slow
def test_another_error_is_not_taken_for_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(self: Saved, folder: Path, step: int) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Saved, "save", save)
    with pytest.raises(PermissionError):
        Run(tmp_path, 4).save()


HARMS: list[Callable[[Path], object]] = [
    lambda folder: shutil.rmtree(folder / "critics" / "team"),
    lambda folder: (folder / "policies" / "two" / "model.pt").write_text("MINE 7"),
    lambda folder: (folder / "team.json").write_bytes(b"[]"),
]


@pytest.mark.slow
@pytest.mark.parametrize("harm", HARMS, ids=["missing", "other", "no list"])
def test_a_damaged_one_is_reported(tmp_path: Path, harm: Callable[[Path], object]) -> None:
    for step in (5, 7):
        _save(tmp_path, step, "mine")
    root = tmp_path / "checkpoints"
    harm(root / "step_7")
    with pytest.raises(MarlError, match="is damaged"):
        Run(tmp_path).load()
    with pytest.raises(MarlError, match=r"step_7' is damaged \(choose another one with --step.*\): "):
        folders.intact(folders.choose(tmp_path))
    assert folders.intact(folders.choose(tmp_path, 5)) == root / "step_5"


def test_a_checkpoint_counts_when_the_metrics_of_its_step_are_stored(tmp_path: Path) -> None:
    """Otherwise a run killed in between would continue after a step without stored metrics."""
    Run(tmp_path, 2).save()
    run = Run(tmp_path, 4)
    run.write(4)
    root = tmp_path / "checkpoints"
    assert [folders.step_of(path) for path in folders.complete(root)] == [2]
    run.commit(4)
    assert [folders.step_of(path) for path in folders.complete(root)] == [2, 4]
    Run(tmp_path, 5).commit(5)  # a step without one
    assert [folders.step_of(path) for path in folders.complete(root)] == [2, 4]
