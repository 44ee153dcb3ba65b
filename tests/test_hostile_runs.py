"""Run directories of others: links, files that block or never end, and damaged ones. No command follows or hangs."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from marl_verl import files
from marl_verl.cli.main import main
from marl_verl.config.stored import read_composed
from marl_verl.errors import MarlError

from .run_folder import run_folder

JOURNAL, ROWS = "journals/step_00001.jsonl", "rows/step_00001.json.gz"
READERS = [
    ["train", "--resume", "run", "--dry-run"],
    ["eval", "run"],
    ["export", "run", "--output", "out"],
    ["report", "run"],
    ["watch", "run"],
    ["replay", "--run", "run"],
    ["replay", f"run/{JOURNAL}"],
    ["explain", "--run", "run"],
    ["explain", f"run/{ROWS}"],
]


def link(path: Path) -> None:
    """The file or folder moves elsewhere; a link is in its place."""
    shutil.move(path, "elsewhere")
    path.symlink_to(Path("elsewhere").resolve())


def fifo(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    path.unlink()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def endless(path: Path) -> None:
    os.truncate(path, files.MOST + 1)  # sparse: takes no space


HARMS: list[tuple[str, Callable[[Path], None], str]] = [
    ("checkpoints/step_1/policies/scout", link, "contains a link"),
    ("checkpoints", link, "contains a link"),
    ("opponents/scout/step_1/saved", link, "contains a link"),
    (JOURNAL, link, "contains a link"),
    ("checkpoints/step_1/random.pt", fifo, "is a FIFO"),
    (JOURNAL, fifo, "is a FIFO"),
    ("starts.json", unix_socket, "is a socket"),
    (JOURNAL, endless, "is too large"),
    ("config.yaml", endless, "is too large"),
]


@pytest.mark.parametrize(("place", "harm", "message"), HARMS, ids=[f"{h.__name__} {p}" for p, h, _ in HARMS])
def test_no_reader_follows_blocks_or_fills_the_memory(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    place: str,
    harm: Callable[[Path], None],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    run = run_folder(Path("run"), steps=1)
    (run / "composed.yaml").write_text("{}\n")
    for name in ("checkpoints/step_1/policies/scout/model.pt", "opponents/scout/step_1/saved/model.pt"):
        (run / name).parent.mkdir(parents=True)
        (run / name).write_bytes(b"")
    (run / "checkpoints/step_1/random.pt").write_bytes(b"")
    harm(run / place)
    for command in READERS:
        assert main(command) == 2, command
        error = capsys.readouterr().err
        assert message in error, command
        assert error.count("\n") == 1
    assert not Path("out").exists()


@pytest.mark.parametrize("command", ["replay", "explain"])
def test_a_file_is_a_regular_one_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("marl_verl.run.packing.MOST", 1 << 20)
    os.mkfifo("fifo")
    Path("large").touch()
    os.truncate("large", files.MOST + 1)
    Path("bomb").write_bytes(gzip.compress(bytes(2 << 20)))
    for name, message in (("/dev/zero", "is a device"), ("fifo", "is a FIFO"), ("large", "large"), ("bomb", "large")):
        assert main([command, name]) == 2
        assert message in capsys.readouterr().err
    Path("rows").write_text("{}")
    Path("link").symlink_to("rows")  # the user's own: followed
    assert main([command, "link"]) == 2
    assert "'link' is" not in capsys.readouterr().err


def test_a_link_in_place_of_a_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(OSError, match="symbolic links"):
        files.read_bytes(tmp_path / "link")
    assert files.read_bytes(tmp_path / "link", follow=True) == b"mine"


def test_trackers_may_link_in_their_folders_and_a_run_may_be_a_link(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", steps=1)
    (run / "wandb").mkdir()
    (run / "wandb" / "latest-run").symlink_to("offline-run-1")
    (tmp_path / "latest").symlink_to(run)
    files.check_run_directory(tmp_path / "latest")


def test_a_damaged_composed_config_is_refused(tmp_path: Path) -> None:
    """Also where it is truncated at the end of a line, which is YAML: defaults would replace the lost keys."""
    config = "data:\n  seed: 1\nmarl:\n  agents:\n    a:\n      policy: a\n  checkpoint:\n    keep: 22\n"
    (tmp_path / "config.yaml").write_text(config + "policies: {}\ncritics: {}\n")
    (tmp_path / "composed.yaml").write_text(config)
    assert read_composed(tmp_path).marl.checkpoint.keep == 22
    cut = [config[:end] for end in range(len(config))]
    deep, aliases = "[" * 100_000, "a: &a [1]\n" + "".join(f"b{i}: &b{i} [*a, *a]\n" for i in range(3))
    bomb = "x0: &x0 [0,0]\n" + "".join(f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 9)}]\n" for i in range(1, 12))
    for content in (*cut, deep, bomb, "[]", "marl: 1\n", "\x00", aliases):
        (tmp_path / "composed.yaml").write_text(content)
        with pytest.raises(MarlError, match=r"composed\.yaml"):
            read_composed(tmp_path)


@pytest.mark.parametrize("content", [None, "[" * 100_000, json.dumps({"step": 2, "files": [], "plugins": {}})])
def test_no_older_step_replaces_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    run = run_folder(Path("run"), steps=1)
    model = "{actor_rollout_ref: {model: {path: x}}}"
    with (run / "config.yaml").open("a") as file:
        file.write(f"policies: {{scout: {model}, mover: {model}}}\ncritics: {{}}\n")
    (run / "composed.yaml").write_text("{}\n")
    for step in (1, 2):
        folder = run / "checkpoints" / f"step_{step}"
        folder.mkdir(parents=True)
        team = {"step": step, "files": {}, "fingerprint": {}, "plugins": {}}
        (folder / "team.json").write_text(json.dumps(team))
    path = run / "checkpoints" / "step_2" / "team.json"
    path.unlink() if content is None else path.write_text(content)
    for command in (["train", "--resume", "run"], ["export", "run", "--policy", "scout", "--output", "out"]):
        assert main(command) == 2
        assert "step_2' is damaged: " in capsys.readouterr().err
