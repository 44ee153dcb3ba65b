"""Recipe files that took minutes or ended in a traceback, and recipes with random mistakes."""

from __future__ import annotations

import contextlib
import copy
import io
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from rich.console import Console

from marl_verl.cli.main import main
from marl_verl.config.compose import compose
from marl_verl.config.verl_keys import ALLOWED, key_paths
from marl_verl.errors import MarlError
from marl_verl.run import prepare, progress

SECONDS = 10.0  # of this process: the machine may be busy with others
RECIPE: dict[str, Any] = {
    "defaults": ["marl_trainer", "_self_"],
    "marl": {
        "task": {"name": "inventory", "train_size": 16, "test_size": 8, "options": {"length": 4}},
        "workflow": {"name": "inventory"},
        "sampler": {"options": {"episodes": 4}},
        "agents": {"holder": {"policy": "one", "instructions": "be brief"}, "asker": {"policy": "two"}},
        "policies": {
            "one": {"tiny": {"steps": 1}, "actor": {"optim": {"lr": 1.0e-3}}},
            "two": {"tiny": {"steps": 1}, "rollout": {"top_p": 1.0}},
        },
    },
    "data": {"train_batch_size": 8, "max_prompt_length": 64, "max_response_length": 16},
    "actor_rollout_ref": {"actor": {"ppo_mini_batch_size": 8}, "rollout": {"max_model_len": 128}},
    "trainer": {"total_training_steps": 5, "test_freq": 2},
}
TEXT = yaml.safe_dump(RECIPE)


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
        (TEXT.replace("- marl_trainer\n- _self_", "- _self_\n- marl_trainer"), "in this order"),
    ],
)
def test_a_recipe_file_is_refused_at_once(content: str, message: str) -> None:
    assert message in refused(content)


@pytest.mark.parametrize("name", ["marl_trainer.yaml", "hardware/cpu.yaml"])
def test_a_config_beside_a_recipe_would_replace_the_one_that_it_extends(name: str) -> None:
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text("trainer: {device: cpu}\n")
    assert f"'{name}' would replace the config file of that name" in refused(TEXT)


@pytest.mark.parametrize(
    "line", ["x='" + "a" * 30_000, "trainer.test_freq=[", "~marl", "+hydra.run.dir=x", "hardware=tpu"]
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
    with pytest.raises(MarlError) as error:
        prepare.plan_run(Path("team.yaml"), [override, *hardware])
    assert message in str(error.value)
    assert os.listdir() == ["team.yaml"]


def _own_paths() -> list[str]:
    return [path for path, _ in key_paths(RECIPE)]


VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 3, 1.5, -0.5, 1e-3, 1e30, float("nan"), float("inf"), 10**30, "", "x", "1", "null"),
    *("${nowhere}", "${marl.run.seed}", "???", "${", "ü\u202e", "a\nb", "/dev/zero", "one", "holder", b"x"),
    *([], {}, [1], [None], ["x"], [[]], {"a": 1}, {1: 2}, {None: None}, {"a": {"b": [1, {}]}}),
]
mistakes = st.lists(
    st.tuples(
        st.sampled_from([*_own_paths(), *(key for key in ALLOWED)]),
        st.sampled_from(["set", "set", "set", "misspell", "remove", "policy"]),
        st.sampled_from(VALUES),
    ),
    min_size=1,
    max_size=3,
)


def _mutated(changes: list[tuple[str, str, Any]]) -> dict[str, Any]:
    recipe = copy.deepcopy(RECIPE)
    for path, how, value in changes:
        path = path.replace("actor_rollout_ref.", "marl.policies.one.") if how == "policy" else path
        *parents, last = path.split(".")
        section = recipe
        for parent in parents:
            if not isinstance(section.get(parent), dict):
                section[parent] = {}
            section = section[parent]
        if how == "remove":
            section.pop(last, None)
        else:
            section[last[:-1] if how == "misspell" else last] = value
    return recipe


@settings(max_examples=10, derandomize=True, suppress_health_check=list(HealthCheck))
@given(mistakes)
def test_a_recipe_with_mistakes_is_planned_or_refused(changes: list[tuple[str, str, Any]]) -> None:
    """Nothing but MarlError, within `SECONDS`."""
    Path("team.yaml").write_text(yaml.safe_dump(_mutated(changes), allow_unicode=True))
    begun = time.process_time()
    with contextlib.suppress(MarlError):
        assert OmegaConf.is_config(prepare.plan_run(Path("team.yaml"), ["hardware=cpu"]).resolved)
    assert time.process_time() - begun < SECONDS
    assert os.listdir() == ["team.yaml"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shell", "message"),
    [("exec marl-verl train {recipe} --dry-run hardware=cpu > /dev/full", "cannot write to standard output: No space")],
)
def test_a_command_line_without_a_place_for_its_output(tmp_path: Path, shell: str, message: str) -> None:
    Path("team.yaml").write_text(TEXT)
    line = shell.format(recipe=tmp_path / "team.yaml").replace("marl-verl", f"{sys.executable} -m marl_verl.cli.main")
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert message in done.stderr


class Full(io.StringIO):
    """A file on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_an_error_that_cannot_be_printed_still_gives_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Full())
    assert main(["train", "nowhere.yaml"]) == 2


def test_a_run_goes_on_where_its_progress_cannot_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "unwritable", lambda error: MarlError(str(error)))  # not of pytest's own output
    display = progress.Display(Console(file=Full()))
    display.event({"event": "phase", "name": "starting Ray"})
    with pytest.raises(MarlError, match="No space left on device"):
        display.print("team")
