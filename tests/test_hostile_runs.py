"""Run directories of others: links, files that block or never end, and damaged ones. No command follows or hangs."""

import gzip
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from marl_verl import files
from marl_verl.cli.main import main

from .run_folder import run_folder

JOURNAL, ROWS = "journals/step_00001.jsonl", "rows/step_00001.json.gz"
READERS = [
    *(["train", "--resume", "run", "--dry-run"], ["eval", "run"]),
    *(["export", "run", "--policy", "scout", "--output", "out"], ["report", "run"], ["watch", "run"]),
    *(["replay", "run"], ["replay", f"run/{JOURNAL}"], ["explain", "run"], ["explain", f"run/{ROWS}"]),
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


HARMS: list[tuple[str, Callable[[Path], None], str]] = [
    ("checkpoints/step_1/policies/scout", link, "contains a link"),
    (JOURNAL, link, "contains a link"),
    ("checkpoints/step_1/random.pt", fifo, "is not a regular file"),
    ("starts.json", unix_socket, "is not a regular file"),
    (JOURNAL, lambda path: os.truncate(path, files.MOST + 1), "is too large"),
]


@pytest.mark.parametrize(("place", "harm", "message"), HARMS, ids=[f"{place} {why}" for place, _, why in HARMS])
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
    monkeypatch.setattr("marl_verl.run.run_dir.MOST", 1 << 20)
    os.mkfifo("fifo")
    Path("large").touch()
    os.truncate("large", files.MOST + 1)
    Path("bomb").write_bytes(gzip.compress(bytes(2 << 20)))
    for name in ("/dev/zero", "fifo", "large", "bomb"):
        assert main([command, name]) == 2
        assert ("large" if name in ("large", "bomb") else "not a regular") in capsys.readouterr().err
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
