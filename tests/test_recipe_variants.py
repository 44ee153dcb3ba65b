"""Every recipe and each of its variants is right: composed, planned with all checks, and fits its GPUs.

Recipes for GPUs are checked with the settings for GPUs, and data sets with a few rows of each. A recipe is read, and
its tasks are made, once for all its variants (conftest.py).
"""

import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch  # noqa: F401 -- where it is imported, the checks of a plan need no child process
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from marl_verl import plugins
from marl_verl.cli.main import main
from marl_verl.config import compose
from marl_verl.config.hardware import HARDWARE_VARIABLE, has_accelerator
from marl_verl.config.parts import algorithm_of
from marl_verl.config.resolve import loss_of
from marl_verl.config.stored import marl_section
from marl_verl.config.variants import TABLE, Variant, variant_overrides, variants_of
from marl_verl.errors import MarlError
from marl_verl.models import count, sources
from marl_verl.plugins import one_file
from marl_verl.run import prepare
from marl_verl.run.describe import describe
from marl_verl.run.prepare import Plan, check_settings, plan_run
from marl_verl.team import TeamConfig
from tests.model_configs import CONFIGS

pytestmark = pytest.mark.slow
RECIPES = Path(__file__).parents[1] / "recipes"
FAMILIES = sorted(table.parent for table in RECIPES.glob(f"*/{TABLE}"))
OTHERS = ("code", "math", "memory", "quickstart", "search", "self_play", "writing")  # have no variants
COPIES = 1100  # of the example's rows: as many tasks as the largest part of a set
SMALL = ("marl.task.train_size=160", "marl.task.test_size=5")
GPUS = {HARDWARE_VARIABLE: "gpu", "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(32)))}


def recipes_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.yaml") if path.name != TABLE)


def id_of(case: Any) -> str:
    if isinstance(case, Path):
        return f"{case.parent.name}/{case.stem}"
    return "+".join(case) or "method"


ALL = [recipe for folder in [*FAMILIES, *(RECIPES / name for name in OTHERS)] for recipe in recipes_of(folder)]
SHOWN = [("at_grpo/cpu", ("grpo", "paid")), ("dr_mas/cpu", ("rare", "grpo")), ("dr_mas/cpu", ("shared", "grpo"))]
CASES = [
    *((recipe, names) for recipe in ALL for names in [(), *((name,) for name in variants_of(recipe))]),
    *((RECIPES / f"{name}.yaml", names) for name, names in SHOWN),  # in READMEs and results
]
FULL = {next(case for case in reversed(CASES) if case[1] == names and case[0].parent == recipe.parent)
        for recipe, names in CASES if names} | {case for case in CASES if not case[1]}  # fmt: skip
"""The cases that are planned, each variant with one recipe; the others are composed only."""


def on_gpu(recipe: Path) -> bool:
    return recipe.parent in FAMILIES and recipe.stem != "cpu" and recipe.parent.name not in ("games", "teams")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recipes")


@pytest.fixture(autouse=True)
def _once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Policies with the same settings are resolved once."""
    monkeypatch.setattr(prepare, "resolve", resolved_once)
    monkeypatch.setattr("marl_verl_tiny.pretrained.Packaged.check", lambda model: [])  # their packages are large
    monkeypatch.setattr(count, "_hub_config", lambda name: CONFIGS.get(name, {}))
    count.model_config.cache_clear()
    yield
    count.model_config.cache_clear()


resolved: dict[bytes, bytes] = {}


def resolved_once(config: DictConfig, team: TeamConfig, resolve: Any = prepare.resolve) -> DictConfig:
    """A resolved config, of which only section `marl` depends on task, workflow and options of the algorithm."""
    content: Any = OmegaConf.to_container(config)
    marl = content.pop("marl")
    losses = {name: loss_of(team, name)[0] for name in team.policies}
    scope = algorithm_of(team).advantage.wants_critic()
    chosen = [marl[key] for key in ("policies", "pools", "critic")], marl["run"]["repeatable"], len(team.agents)
    key = pickle.dumps((content, chosen, losses, scope, has_accelerator()))
    if key not in resolved:
        resolved[key] = pickle.dumps(resolve(config, team))
    whole: DictConfig = pickle.loads(resolved[key])
    whole.marl = marl_section(config)
    return whole


def data_of(recipe: Path, folder: Path) -> list[str]:
    """Overrides that name the data of a recipe whose set is public: the example's rows, many times."""
    example = recipe.parent / f"example_{recipe.stem}.jsonl"
    if not example.is_file():
        return []
    rows = [json.loads(line) for line in example.read_text().splitlines()]
    for split in ("train", "test"):
        copies = [{**rows[n % len(rows)], "id": f"{split} {n}"} for n in range(COPIES)]
        copies = [{**row, "prompt": f"{row['prompt']}\n# {split}\n"} for row in copies]
        lines = "".join(json.dumps(row) + "\n" for row in copies)
        (folder / f"{recipe.parent.name}-{recipe.stem}-{split}.jsonl").write_text(lines)
    return [f"marl.task.{x}_file={folder}/{recipe.parent.name}-{recipe.stem}-{x}.jsonl" for x in ("train", "test")]


plans: dict[Any, Plan] = {}


def plan(recipe: Path, names: tuple[str, ...], folder: Path, *more: str) -> Plan:
    """The plan of a variant; of a recipe for GPUs as on a machine with 32 of them, with all checks that apply there."""
    key = (recipe, names, more)
    if key not in plans:
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in GPUS.items() if on_gpu(recipe) else ():
                patch.setenv(variable, value)
            plans[key] = plan_run(recipe, [*variant_overrides(recipe, names), *data_of(recipe, folder), *SMALL, *more])
    return plans[key]


@pytest.mark.parametrize(("recipe", "names"), CASES, ids=id_of)
def test_a_variant_fits(recipe: Path, names: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It passes all checks, fits its GPUs of 80 GB or this machine by the estimate, and has what its overrides say."""
    if (recipe, names) not in FULL:
        for variable, value in GPUS.items() if on_gpu(recipe) else ():
            monkeypatch.setenv(variable, value)
        overrides = variant_overrides(recipe, names)
        config = compose.compose(recipe, overrides, hardware="gpu" if on_gpu(recipe) else "cpu")
        plugins.use_files(one_file.read_files([recipe.parent / path for path in config.marl.plugins or ()]))
        check_settings(config)
        assert_written(config, overrides)
        return
    planned = plan(recipe, names, folder)
    assert "policy  " in describe(planned)
    assert planned.config.trainer.device == ("cuda" if on_gpu(recipe) else "cpu")
    trained = [name for name, policy in planned.team.policies.items() if policy.trained]
    for need in planned.facts["memory"]:
        assert need.total <= need.room, str(need)
    if on_gpu(recipe):
        parts = {label for need in planned.facts["memory"] for label in need.parts}
        for name in trained:
            path = planned.team.policies[name].override.get("model", {}).get("path")  # its size may not be known yet
            if planned.team.policies[name].pool is None:
                assert f"weights of {name}" in parts or planned.team.alike(name)[0] != name or sources.pretrained(path)
            else:  # the others of its pool need the memory
                assert planned.resolved.policies[name].actor_rollout_ref.actor.fsdp_config.param_offload, name
    assert_written(planned.config, variant_overrides(recipe, names))
    if "single" in names or "single_large" in names:
        assert {agent.policy for agent in planned.team.agents.values()} == set(trained)
        assert len(trained) == 1


def assert_written(config: DictConfig, overrides: list[str]) -> None:
    """Every override is in the config, except where a later one replaces it."""
    wanted: dict[str, Override] = {}
    for change in compose.parse_overrides(overrides):
        if change.is_delete():
            wanted = {key: other for key, other in wanted.items() if not key.startswith(f"{change.key_or_group}.")}
        wanted[change.key_or_group] = change
    for key, change in wanted.items():
        if any(other.startswith(f"{key}.") for other in wanted) or change.is_delete():
            continue
        setting = OmegaConf.select(config, key)
        plain = OmegaConf.to_container(setting) if OmegaConf.is_config(setting) else setting
        value = change.value()
        if isinstance(value, dict):  # merged over what the recipe has
            plain = {name: plain[name] for name in value}
        assert plain == value, key


@pytest.mark.parametrize("script", sorted(RECIPES.glob("*/run_*.sh")), ids=id_of)
def test_a_script_trains_its_recipe_and_hands_on_its_arguments(script: Path, tmp_path: Path, folder: Path) -> None:
    (tmp_path / "marl-verl").write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@"\n')
    (tmp_path / "marl-verl").chmod(0o755)
    env = {"PATH": os.pathsep.join([str(tmp_path), os.environ["PATH"]])}
    called = subprocess.run([str(script), "--variant", "x", "a=b"], env=env, check=True, capture_output=True, text=True)
    command, recipe, *overrides, last = called.stdout.splitlines()
    assert (command, Path(recipe), last) == ("train", script.parent / f"{script.stem.removeprefix('run_')}.yaml", "a=b")
    assert overrides[-2:] == ["--variant", "x"]
    # without environment variables it changes nothing: a variant would lose against it
    assert compose.compose(Path(recipe), overrides[:-2], "gpu") == compose.compose(Path(recipe), [], "gpu")


@pytest.mark.parametrize("family", FAMILIES, ids=lambda path: path.name)
def test_a_table_has_variants_of_its_recipes_only_and_its_readme_names_them(family: Path) -> None:
    content: Any = OmegaConf.to_container(OmegaConf.load(family / TABLE))
    named = {name for entry in content.values() for key in entry["overrides"] for name in key.split(", ")
             if isinstance(entry["overrides"], dict)}  # fmt: skip
    assert named <= {recipe.stem for recipe in recipes_of(family)}
    assert set(content) == {name for recipe in recipes_of(family) for name in variants_of(recipe)}
    readme = (family / "README.md").read_text(encoding="utf-8")
    assert [name for name in content if not re.search(rf"`(run_\w+\.sh --variant )?{name}`", readme)] == []
    for script in family.glob("run_*.sh"):
        assert script.name in readme


def test_a_variant_builds_on_another_and_applies_to_the_recipes_that_it_names(tmp_path: Path) -> None:
    recipe, table = tmp_path / "a.yaml", tmp_path / TABLE
    table.write_text(
        "one: {about: First., overrides: [x=1]}\n"
        "two: {about: Second., base: one, overrides: {'a, b': [y=1], a: [y=2], c: [y=3]}}\n"
        "three: {about: Third., overrides: {c: [z=1]}}\n"
    )
    assert variants_of(recipe) == {"one": Variant("First.", ["x=1"]), "two": Variant("Second.", ["x=1", "y=1", "y=2"])}
    assert variant_overrides(recipe, ["two", "one"]) == ["x=1", "y=1", "y=2", "x=1"]
    with pytest.raises(MarlError, match="unknown variant 'thre'"):
        variant_overrides(recipe, ["thre"])


def test_commands_list_and_apply_variants(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = str(RECIPES / "at_grpo" / "cpu.yaml")
    assert main(["eval", recipe, "--variants"]) == 0
    assert "The paper's other regime" in capsys.readouterr().out
    assert main(["train", recipe, "--variant", "grpo", "--variant", "shared", *SMALL, "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "policy  both" in printed
    assert "grpo" in printed
    assert main(["train", "--resume", "runs/x", "--variant", "shared"]) == 2


HUB = {
    "sharp/web test=webwalkerqa": ("dgslibisey/MuSiQue", "callanwu/WebWalkerQA, split 'main'"),
    "dr_mas/math": ("aaabiao/dapo_filter", "HuggingFaceH4/MATH-500, split 'test' and HuggingFaceH4/aime_2024"),
}


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in GPUS.items():
        monkeypatch.setenv(variable, value)


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("name", HUB)
def test_a_dry_run_names_the_public_set_and_loads_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    recipe, _, change = name.partition(" ")
    path = RECIPES / f"{recipe}.yaml"
    changes = [f"marl.task.options.{change}"] if "=" in change else variant_overrides(path, change.split())
    planned = plan_run(path, changes, dry_run=True)
    notes = [note for note in planned.notes if note.endswith("a dry run loads and checks none")]
    assert [note.split()[0] for note in notes] == ["train", "test"]
    assert all(hub in note for hub, note in zip(HUB[name], notes, strict=True))
    assert "(not loaded)" in describe(planned)


@pytest.mark.usefixtures("gpus")
def test_a_dry_run_generates_few_tasks_of_a_slow_set() -> None:
    planned = plan_run(RECIPES / "at_grpo" / "sokoban.yaml", [], dry_run=True)
    assert {split: len(tasks) for split, tasks in planned.tasks.items()} == {"train": 32, "test": 8}
    assert planned.config.trainer.total_training_steps == 200
