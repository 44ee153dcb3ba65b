"""Recipe files that took minutes or ended in a traceback, and recipes with random mistakes."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from marl_verl.config.compose import compose
from marl_verl.errors import MarlError
from marl_verl.run import prepare
from tests.test_bad_values import RECIPE as TEXT

SECONDS = 10.0  # of this process: the machine may be busy with others


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refused(content: str, *overrides: str, name: str = "team.yaml") -> str:
    """The message for a recipe file, which must come at once."""
    Path(name).write_text(content)
    begun = time.process_time()
    with pytest.raises(MarlError) as error:
        compose(Path(name), overrides, hardware="cpu")
    assert time.process_time() - begun < SECONDS
    assert len(str(error.value)) < 1000
    return str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (TEXT + "x: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        (TEXT + "marl_: 1\n", "unknown key 'marl_': did you mean 'marl'?"),
        (TEXT.replace("marl_trainer, _self_", "_self_, marl_trainer"), "in this order"),
    ],
)
def test_a_recipe_file_is_refused_at_once(content: str, message: str) -> None:
    assert message in refused(content)


@pytest.mark.parametrize(
    "line", ["x='" + "a" * 30_000, "trainer.test_freq=[", "~marl", "+hydra.run.dir=x", "hardware=tpu", "data.seed=1,2"]
)
def test_an_override_is_refused_at_once(line: str) -> None:
    Path("team.yaml").write_text(TEXT)
    begun = time.process_time()
    with pytest.raises(MarlError) as error:
        prepare.plan_run(Path("team.yaml"), [line, *(["hardware=cpu"] if "hardware" not in line else [])])
    assert time.process_time() - begun < SECONDS
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("marl.run.dir=/dev/null/runs", "cannot be created"),
        ("hardware=gpu", "the policies need 1 (one) + 1 (two) = 2 GPUs, but this machine has 0"),
    ],
)
def test_a_place_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, override: str, message: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    Path("team.yaml").write_text(TEXT)
    hardware = [] if override.startswith("hardware") else ["hardware=cpu"]
    with pytest.raises(MarlError, match=re.escape(message)):
        prepare.plan_run(Path("team.yaml"), [override, *hardware])
    assert os.listdir() == ["team.yaml"]


@pytest.mark.slow
def test_a_command_line_without_a_place_for_its_output() -> None:
    Path("team.yaml").write_text(TEXT)
    line = f"exec {sys.executable} -m marl_verl.cli.main train team.yaml --dry-run hardware=cpu > /dev/full"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "cannot write to standard output: No space" in done.stderr
