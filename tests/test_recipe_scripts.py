"""Every script under recipes/ is right: composed with all its overrides, against verl's real config and our schema.

A script calls `marl-verl train`; here a stand-in on the path writes down what it was called with, and the checks of the
real command are run on that. Scripts for GPUs are checked with the settings for GPUs, and data sets with a few rows of
each.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from marl_verl.cli.describe import describe
from marl_verl.cli.prepare import Plan, plan_run
from marl_verl.config.compose import parse_overrides
from marl_verl.errors import MarlError
from marl_verl.parts import algorithm_of

pytestmark = pytest.mark.slow
RECIPES = Path(__file__).parents[1] / "recipes"
SCRIPTS = sorted(RECIPES.glob("*/run_*.sh"))
COPIES = 600  # of the example's rows: as many tasks as the largest batch
SMALL = ("marl.task.train_size=600", "marl.task.test_size=5")
STAND_IN = '#!/usr/bin/env bash\nprintf "%s\\0" "$@" > "$CALLED"\n'


def name_of(script: Path) -> str:
    return f"{script.parent.name}/{script.stem.removeprefix('run_')}"


every = pytest.mark.parametrize("script", SCRIPTS, ids=name_of)


@functools.cache
def stand_in() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="marl-scripts-"))
    (folder / "marl-verl").write_text(STAND_IN)
    (folder / "marl-verl").chmod(0o755)
    return folder


@pytest.fixture(scope="module", autouse=True)
def _clean() -> Iterator[None]:
    yield
    for path in stand_in().iterdir():
        path.unlink()
    stand_in().rmdir()


def call(script: Path, *arguments: str, **variables: str) -> list[str]:
    """What a script calls `marl-verl` with."""
    called = stand_in() / "called"
    path = os.pathsep.join([str(stand_in()), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "CALLED": str(called), **variables}
    subprocess.run([str(script), *arguments], env=env, check=True, timeout=30, cwd=stand_in())
    return called.read_text().split("\0")[:-1]


def data_of(script: Path) -> dict[str, str]:
    """The variables that name the script's data: the example's rows, many times; none where tasks are generated."""
    examples = {path.stem.removeprefix("example_"): path for path in script.parent.glob("example_*.jsonl")}
    setting = script.stem.removeprefix("run_")
    fit = [name for name in examples if setting == name or setting.startswith(f"{name}_")]
    if not fit:
        return {}
    rows = [json.loads(line) for line in examples[max(fit, key=len)].read_text().splitlines()]
    variables = {}
    for split in ("train", "test"):
        path = stand_in() / f"{script.parent.name}-{max(fit, key=len)}-{split}.jsonl"
        copies = [{**rows[n % len(rows)], "id": f"{split} {n}"} for n in range(COPIES)]
        path.write_text("".join(json.dumps(row) + "\n" for row in copies))
        variables[f"{split.upper()}_FILE"] = str(path)
    return variables


def on_gpu(script: Path) -> bool:
    return not script.stem.startswith("run_cpu")


@functools.cache
def overrides(script: Path) -> tuple[Path, tuple[str, ...]]:
    words = call(script, **data_of(script))
    assert words[0] == "train"
    return Path(words[1]), tuple(words[2:])


@functools.cache
def plan(script: Path) -> Plan:
    recipe, given = overrides(script)
    return plan_run(recipe, [*given, *SMALL, *(["hardware=gpu"] if on_gpu(script) else [])])


def test_there_are_scripts_of_every_paper() -> None:
    for paper in ("magrpo", "at_grpo", "mars2", "dr_mas", "sharp"):
        mine = [script for script in SCRIPTS if script.parent.name == paper]
        assert any(not on_gpu(script) for script in mine), paper
        assert any(on_gpu(script) for script in mine), paper
        assert all(os.access(script, os.X_OK) for script in mine), paper
        assert (RECIPES / paper / "README.md").is_file()


@every
def test_a_script_is_right(script: Path) -> None:
    assert "policy  " in describe(plan(script))


@every
def test_every_override_of_a_script_is_in_its_config(script: Path) -> None:
    _, given = overrides(script)
    # of two that name one key the later one holds
    wanted = {change.key_or_group: change for change in parse_overrides(given)}
    for key, change in wanted.items():
        if any(other != key and other.startswith(f"{key}.") for other in wanted) or change.is_delete():
            continue
        found = OmegaConf.select(plan(script).config, key)
        plain = OmegaConf.to_container(found) if OmegaConf.is_config(found) else found
        if f"{key}=" in " ".join(SMALL):
            continue
        value = change.value()
        if isinstance(value, dict):  # merged over what the recipe has
            assert isinstance(plain, dict)
            plain = {name: plain[name] for name in value}
        assert plain == value, key


@every
def test_a_script_hands_on_what_it_is_given(script: Path) -> None:
    words = call(script, "marl.run.seed=7", "trainer.total_training_steps=3", **data_of(script))
    assert words[-2:] == ["marl.run.seed=7", "trainer.total_training_steps=3"]


@every
def test_an_unknown_key_is_refused(script: Path) -> None:
    recipe, given = overrides(script)
    with pytest.raises(MarlError, match=r"unknown key 'marl\.sampler\.sesions': did you mean 'sessions'"):
        plan_run(recipe, [*given, "marl.sampler.sesions=4"])


@every
def test_without_its_data_a_script_names_the_file(script: Path, tmp_path: Path) -> None:
    if not data_of(script):
        pytest.skip("its tasks are generated")
    nowhere = tmp_path / "nowhere.jsonl"
    words = call(script, TRAIN_FILE=str(nowhere), TEST_FILE=str(nowhere))
    with pytest.raises(MarlError, match=rf"marl\.task\.train_file: no task file '{nowhere}'; the README"):
        plan_run(Path(words[1]), [*words[2:], "hardware=gpu"])


def essence(script: Path) -> dict[str, Any]:
    """What makes a method, and what a baseline changes: flat, by the names that config has."""
    found = plan(script)
    marl: Any = OmegaConf.to_container(found.config.marl, resolve=True)
    agents = {f"agent {name}": agent.policy for name, agent in found.team.agents.items()}
    models = {f"model {name}": found.tiny.get(name) or policy.override for name, policy in found.team.policies.items()}
    return {
        **algorithm_of(found.team).options(),
        "algorithm": found.team.algorithm.name,
        "workflow": (found.team.workflow.name, found.team.workflow.options),
        "sessions": marl["sampler"]["sessions"],
        "sampler options": marl["sampler"]["options"],
        "validation": marl["validation"],
        "schedule": marl["schedule"]["mode"],
        **agents,
        **models,
    }


def differs(script: Path, base: Path) -> set[str]:
    """The names in which two scripts' configs differ."""
    mine, other = essence(script), essence(base)
    return {name for name in mine.keys() | other.keys() if mine.get(name) != other.get(name)}
