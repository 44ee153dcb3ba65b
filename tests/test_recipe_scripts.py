"""Every script under recipes/ is right: composed with all its overrides, against verl's real config and our schema.

A script calls `marl-verl train`; here a stand-in on the path writes down what it was called with, and the checks of the
real command are run on that. Scripts for GPUs are checked with the settings for GPUs, and data sets with a few rows of
each.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch  # noqa: F401 -- where it is imported, the checks of a plan need no child process
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from marl_verl.config.compose import parse_overrides
from marl_verl.config.hardware import HARDWARE_VARIABLE
from marl_verl.config.parts import algorithm_of
from marl_verl.errors import MarlError
from marl_verl.models import count
from marl_verl.run.describe import describe
from marl_verl.run.prepare import Plan, plan_run
from tests.model_configs import CONFIGS

pytestmark = pytest.mark.slow
RECIPES = Path(__file__).parents[1] / "recipes"
SCRIPTS = sorted(RECIPES.glob("*/run_*.sh"))
COPIES = 1100  # of the example's rows: as many tasks as the largest part of a set
SMALL = ("marl.task.train_size=600", "marl.task.test_size=5")
GIVEN = ("marl.run.seed=7001", "trainer.total_training_steps=7001")
PROMPTED = ("_concatenation", "_pipeline", "_discussion")  # evaluated without training
STAND_IN = '#!/usr/bin/env bash\nprintf "%s\\0" "$@" > "$CALLED"\n'


def name_of(script: Path) -> str:
    return f"{script.parent.name}/{script.stem.removeprefix('run_')}"


def base_of(script: Path) -> Path | None:
    """The method's own script that a variant calls; None for one that calls `marl-verl` itself."""
    others = [other for other in SCRIPTS if other != script and other.parent == script.parent]
    return min((other for other in others if script.stem.startswith(f"{other.stem}_")), default=None)


every = pytest.mark.parametrize("script", SCRIPTS, ids=name_of)


@functools.cache
def stand_in() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="scripts-"))
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


def example_of(script: Path) -> Path | None:
    """A few rows of the data that a script needs; None if its tasks are generated."""
    setting = script.stem.removeprefix("run_")
    examples = {path.stem.removeprefix("example_"): path for path in script.parent.glob("example_*.jsonl")}
    fit = [name for name in examples if setting == name or setting.startswith(f"{name}_")]
    return examples[max(fit, key=len)] if fit else None


def data_of(script: Path) -> dict[str, str]:
    """The variables that name the script's data: the example's rows, many times."""
    example = example_of(script)
    if example is None:
        return {}
    rows = [json.loads(line) for line in example.read_text().splitlines()]
    variables = {}
    for split in ("train", "test"):
        path = stand_in() / f"{script.parent.name}-{example.stem}-{split}.jsonl"
        copies = [{**rows[n % len(rows)], "id": f"{split} {n}"} for n in range(COPIES)]
        copies = [{**row, "prompt": f"{row['prompt']}\n# {split}\n"} for row in copies]
        path.write_text("".join(json.dumps(row) + "\n" for row in copies))
        variables[f"{split.upper()}_FILE"] = str(path)
    return variables


def on_gpu(script: Path) -> bool:
    return "cpu" not in script.stem.split("_")


@functools.cache
def called(script: Path) -> list[str]:
    """What a script calls `marl-verl` with when it is given `GIVEN`. Each script runs only once."""
    return call(script, *GIVEN, **data_of(script))


@functools.cache
def overrides(script: Path) -> tuple[Path, tuple[str, ...]]:
    words = called(script)
    assert words[0] == ("eval" if script.stem.endswith(PROMPTED) else "train")
    return Path(words[1]), tuple(word for word in words[2:] if word not in GIVEN)


@functools.cache
def plan(script: Path) -> Plan:
    """A script's plan; that of a script for GPUs as on a machine with 32 of them, with all checks that apply there."""
    recipe, given = overrides(script)
    with pytest.MonkeyPatch.context() as patch:
        if on_gpu(script):
            patch.setenv(HARDWARE_VARIABLE, "gpu")
            patch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(32))))
        patch.setattr(count, "_hub_config", lambda name: CONFIGS.get(name, {}))
        count.model_config.cache_clear()
        return plan_run(recipe, [*given, *SMALL])


def test_there_are_scripts_of_every_paper() -> None:
    for paper in ("magrpo", "at_grpo", "mars2", "dr_mas", "sharp"):
        mine = [script for script in SCRIPTS if script.parent.name == paper]
        assert any(not on_gpu(script) for script in mine), paper
        assert any(on_gpu(script) for script in mine), paper
        assert all(os.access(script, os.X_OK) for script in mine), paper
        assert (RECIPES / paper / "README.md").is_file()


@every
def test_a_script_is_right(script: Path) -> None:
    made = plan(script)
    assert "policy  " in describe(made)
    assert made.config.trainer.device == ("cuda" if on_gpu(script) else "cpu")
    for name, policy in made.team.policies.items():
        if on_gpu(script) and policy.pool is not None and policy.trained:  # the others of its pool need the memory
            assert made.resolved.policies[name].actor_rollout_ref.actor.fsdp_config.param_offload, name


@every
def test_a_script_fits_its_gpus(script: Path) -> None:
    """By the estimate, on GPUs with 80 GB, and on this machine."""
    needs = plan(script).needs
    if on_gpu(script):
        trained = [name for name, policy in plan(script).team.policies.items() if policy.trained]
        assert len([need for need in needs if "training" in need.where]) == len(trained)
    for need in needs:
        assert need.total <= need.room or need.where.startswith("disk"), str(need)


def test_a_model_that_is_not_there_is_not_estimated() -> None:
    made = plan(RECIPES / "at_grpo" / "run_cpu_joined.sh")
    assert any(note.startswith("no memory estimate of policy 'planner'") for note in made.notes)


@every
def test_every_override_of_a_script_is_in_its_config(script: Path) -> None:
    _, given = overrides(script)
    wanted: dict[str, Override] = {}
    for change in parse_overrides(given):  # of two that name one key the later one holds
        if change.is_delete():
            wanted = {key: other for key, other in wanted.items() if not key.startswith(f"{change.key_or_group}.")}
        wanted[change.key_or_group] = change
    for key, change in wanted.items():
        if any(other != key and other.startswith(f"{key}.") for other in wanted) or change.is_delete():
            continue
        found = OmegaConf.select(plan(script).config, key)
        plain = OmegaConf.to_container(found) if OmegaConf.is_config(found) else found
        if f"{key}=" in " ".join(SMALL):
            continue
        value = change.value()
        value = getattr(value, "text", value)  # of a quoted one
        if isinstance(value, dict):  # merged over what the recipe has
            assert isinstance(plain, dict)
            plain = {name: plain[name] for name in value}
        assert plain == value, key


@every
def test_a_script_hands_on_what_it_is_given(script: Path) -> None:
    assert called(script)[-2:] == list(GIVEN)
    assert not set(GIVEN) & set(called(script)[:-2])  # the words that `overrides` removes are those given here


@pytest.mark.parametrize("script", [each for each in SCRIPTS if base_of(each) is None], ids=name_of)
def test_an_unknown_key_is_refused(script: Path) -> None:
    recipe, given = overrides(script)
    with pytest.raises(
        MarlError, match=r"unknown key 'marl\.sampler\.sessions': did you mean 'marl\.sampler\.options'"
    ):
        plan_run(recipe, [*given, "marl.sampler.sessions=4"])


@pytest.mark.parametrize("script", [each for each in SCRIPTS if example_of(each) and not base_of(each)], ids=name_of)
def test_without_its_data_a_script_names_the_file(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(32))))
    nowhere = tmp_path / "nowhere.jsonl"
    words = call(script, TRAIN_FILE=str(nowhere), TEST_FILE=str(nowhere))
    message = rf"marl\.task\.train_file: no task file '{nowhere}'\. Check the path\. The README"
    with pytest.raises(MarlError, match=message):
        plan_run(Path(words[1]), [*words[2:], "hardware=gpu"])


HUB = {
    "magrpo/run_code_coop.sh": ("OpenMLRL/CoopHumanEval", "OpenMLRL/CoopHumanEval"),
    "magrpo/run_writing_arxiv.sh": ("OpenMLRL/arXiv_abstract", "OpenMLRL/arXiv_abstract"),
    "sharp/run_multi_hop.sh": ("dgslibisey/MuSiQue", "dgslibisey/MuSiQue"),
    "sharp/run_web.sh": ("dgslibisey/MuSiQue", "gaia-benchmark/GAIA (2023_all), split 'validation'"),
    "sharp/run_web.sh webwalkerqa": ("dgslibisey/MuSiQue", "callanwu/WebWalkerQA, split 'main'"),
    "sharp/run_web.sh frames": ("dgslibisey/MuSiQue", "google/frames-benchmark, split 'test'"),
    "at_grpo/run_math.sh": ("POLARIS-Project/Polaris-Dataset-53K", "HuggingFaceH4/aime_2024"),
    "mars2/run_code.sh": ("codeparrot/apps", "livecodebench/code_generation_lite"),
    "dr_mas/run_math.sh": ("aaabiao/dapo_filter", "HuggingFaceH4/MATH-500, split 'test' and HuggingFaceH4/aime_2024"),
    "dr_mas/run_search.sh": ("hotpotqa/hotpot_qa", "hotpotqa/hotpot_qa"),
}


@pytest.mark.parametrize("name", HUB)
def test_a_dry_run_without_files_names_the_public_set_and_loads_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.setenv(HARDWARE_VARIABLE, "gpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(32))))
    script, _, test_set = name.partition(" ")
    words = call(RECIPES / script, **({"TEST_SET": test_set} if test_set else {}))
    made = plan_run(Path(words[1]), words[2:], dry_run=True)
    notes = [note for note in made.notes if note.endswith("a dry run loads and checks none")]
    assert [note.split()[0] for note in notes] == ["train", "test"]
    assert all(hub in note for hub, note in zip(HUB[name], notes, strict=True))
    assert "(not loaded)" in describe(made)


def test_a_dry_run_generates_few_tasks_of_a_slow_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HARDWARE_VARIABLE, "gpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(32))))
    words = call(RECIPES / "at_grpo" / "run_sokoban.sh")
    made = plan_run(Path(words[1]), words[2:], dry_run=True)
    assert {split: len(tasks) for split, tasks in made.tasks.items()} == {"train": 32, "test": 8}
    assert made.config.trainer.total_training_steps == 200


ROLES = {"plan_path": ("tool-caller", "planner"), "math": ("tool-user", "reasoner"), "code": ("coder", "tester")}


@pytest.mark.parametrize("task", ROLES)
def test_roles_of_at_grpo_are_trained_alone_and_joined(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the arguments in the README."""
    monkeypatch.setenv(HARDWARE_VARIABLE, "gpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(32))))
    script, (alone, frozen) = RECIPES / "at_grpo" / f"run_{task}.sh", ROLES[task]
    words = call(script, f"marl.policies.{frozen}.frozen=true", *SMALL)
    team = plan_run(Path(words[1]), words[2:], dry_run=True).team
    assert {name for name, policy in team.policies.items() if policy.trained} == {alone}
    words = call(script, *(f"marl.policies.{role}.model.path=exported/{role}" for role in ROLES[task]), *SMALL)
    made = plan_run(Path(words[1]), words[2:], dry_run=True)
    assert all(made.resolved.policies[role].actor_rollout_ref.model.path == f"exported/{role}" for role in ROLES[task])


# What each baseline changes


def essence(script: Path) -> dict[str, Any]:
    """The settings that define a method or a baseline, as flat config keys."""
    found = plan(script)
    marl: Any = OmegaConf.to_container(found.config.marl, resolve=True)
    resolved: Any = OmegaConf.to_container(found.resolved.policies, resolve=True)
    policies = {}
    for name, policy in found.team.policies.items():
        if policy.external:
            policies[f"policy {name}"] = {"model": policy.endpoint, "trained": False}
            continue
        model = resolved[name]["actor_rollout_ref"]["model"]
        tiny = found.made.get(name)
        policies[f"policy {name}"] = {
            "model": model["path"] if tiny is None else (tiny.family, tiny.agents, tiny.steps, tiny.good, tiny.seed),
            "lora_rank": model["lora_rank"],
            "trained": policy.trained,
        }
    return {
        **algorithm_of(found.team).options(),
        **{f"agent {name}": (agent.policy, agent.reward) for name, agent in found.team.agents.items()},
        **policies,
        "workflow": (found.team.workflow.name, found.team.workflow.options),
        "task options": found.team.task.options,
        "sampler options": marl["sampler"]["options"],
        "validation": marl["validation"],
        "schedule": marl["schedule"]["mode"],
    }


ASPECTS = {
    "comparison": {"advantage", "group", "scale_group", "sample", "singleton", "baseline", "mode", "normalize", "std"}
    | {"norm_by_std", "eps", "min_std", "filter_method", "filter_ratio"},
    "returns": {"returns", "gamma", "lam", "shaping_from", "overlong", "joint_mode"},
    "sampling": {"sampler", "sampler options"},
    "rewards": {"rewards", "alpha", "weights", "penalty", "w_broadcast", "w_marginal", "w_tool", "planner"},
    **{name: {name} for name in ("loss", "metrics", "workflow", "task options", "validation", "schedule")},
}


def aspect(name: str) -> str:
    """Which part of a method an option belongs to."""
    if name.startswith("credit"):
        return "credit"
    if name.startswith(("agent ", "policy ")):
        return "team"
    return next(what for what, names in ASPECTS.items() if name in names)


def differs(script: Path, base: Path) -> dict[str, tuple[Any, Any]]:
    """Name -> (in the method, in the variant), where the two configs differ."""
    mine, other = essence(script), essence(base)
    names = mine.keys() | other.keys()
    return {name: (other.get(name), mine.get(name)) for name in names if mine.get(name) != other.get(name)}


COMPARED = {"comparison", "metrics"}
SINGLE = {"team", "workflow"}
GAMES = ("code", "sokoban", "sudoku")
RARE = {"rewards", "task options", "team", "workflow"}
DIFFERS: dict[str, set[str]] = {
    "at_grpo/cpu_executor_alone": {"team"},
    "at_grpo/cpu_planner_alone": {"team"},
    "at_grpo/cpu_joined": {"team"},
    "at_grpo/cpu_paid": {"team"},
    "at_grpo/cpu_paid_grpo": {*COMPARED, "sampling", "team"},
    "games/cpu_shared": {"team"},
    "games/cpu_three": {"team", "task options"},
    "games/cpu_shared_four": {"team", "task options"},
    **{f"at_grpo/{setting}_grpo": {*COMPARED, "sampling"} for setting in ("cpu", "math", "plan_path")},
    **{f"at_grpo/{setting}_episodes": {"sampling"} for setting in ("cpu", "math", "plan_path")},
    **{f"at_grpo/{setting}_shared": {"team"} for setting in ("cpu", "math", "plan_path")},
    **{f"at_grpo/{setting}_single": {*COMPARED, *SINGLE, "sampling"} for setting in ("cpu", "math", "plan_path")},
    **{f"at_grpo/{setting}_{which}": {"team"} for setting in ("math", "plan_path") for which in ("8b", "lora")},
    **{f"at_grpo/{game}_{name}": {"team"} for game in GAMES for name in ("8b", "lora", "shared")},
    **{f"at_grpo/{game}_grpo": {*COMPARED, "sampling"} for game in GAMES},
    **{f"at_grpo/{game}_single": {*COMPARED, *SINGLE, "sampling"} for game in GAMES},
    "at_grpo/code_episodes": {"sampling"},
    "dr_mas/cpu_own_mean": {"comparison"},
    "dr_mas/cpu_rare": RARE,
    "dr_mas/cpu_rare_grpo": {*RARE, "comparison"},
    "dr_mas/cpu_shared": {"team"},
    "dr_mas/cpu_shared_grpo": {"comparison", "team"},
    "dr_mas/cpu_single": {"comparison", "rewards", *SINGLE},
    "dr_mas/math_8b": {"team"},
    "dr_mas/search_3b": {"team"},
    "dr_mas/search_heterogeneous": {"team"},
    **{f"dr_mas/{setting}_grpo": {"comparison"} for setting in ("cpu", "math", "search")},
    **{f"dr_mas/{setting}_trajectory_mean": {"comparison"} for setting in ("cpu", "math", "search")},
    **{f"dr_mas/{setting}_shared": {"team"} for setting in ("math", "search")},
    **{f"dr_mas/{setting}_single": {"comparison", *SINGLE} for setting in ("math", "search")},
    "magrpo/cpu_grpo": {"comparison", "returns", "loss", "sampling"},
    "magrpo/cpu_myopic": {"returns"},
    "magrpo/cpu_shared": {"team"},
    "magrpo/cpu_three_turns": {"sampling", "task options", "workflow"},
    "magrpo/code_single_turn": {"workflow"},
    "magrpo/code_passed": {"workflow"},
    "magrpo/code_plain": {"workflow"},
    **{f"magrpo/code_{name}": {"workflow"} for name in ("concatenation", "pipeline", "discussion")},
    "magrpo/writing_concatenation": set(),
    **{f"magrpo/writing_{name}": {"workflow"} for name in ("pipeline", "discussion")},
    "magrpo/code_expert": {"team", "workflow"},
    "magrpo/writing_arxiv": {"workflow", "task options"},
    **{f"magrpo/{setting}_cross": {"returns", "sampling"} for setting in ("code", "cpu", "writing")},
    "magrpo/cpu_normalize": {"comparison"},
    "magrpo/code_coop": {"task options"},
    "magrpo/code_cpu": {"sampling", "task options", "team"},
    **{f"magrpo/{setting}_unnormalized": {"comparison"} for setting in ("code", "writing")},
    **{f"magrpo/{setting}_episodes": {"comparison", "sampling"} for setting in ("code", "cpu")},
    **{f"magrpo/{name}": {"comparison", "returns", "loss", "sampling"} for name in ("code_grpo", "writing_grpo")},
    "magrpo/cpu_outcome": {"comparison", "returns", "loss", "sampling"},
    **{
        f"magrpo/{setting}_single": {"comparison", "returns", "loss", "sampling", *SINGLE}
        for setting in ("code", "cpu")
    },
    "magrpo/code_single_7b": {"comparison", "returns", "loss", "sampling", *SINGLE},
    **{
        f"magrpo/writing_{name}": {"comparison", "returns", "loss", "sampling", "team"}
        for name in ("single", "single_4b")
    },
    "mars2/code_32b": {"team"},
    "mars2/code_72b": {"team", "sampling", "validation"},
    "mars2/code_shared": {"team"},
    "mars2/code_search60_decay": {"validation"},
    "mars2/code_small": {"team", "returns"},
    "mars2/code_mars2": {"loss", "returns"},
    "mars2/cpu_plus": {"loss", "returns"},
    "mars2/cpu_independent": {*COMPARED, "returns", "sampling"},
    "mars2/cpu_stack": {"sampling", "validation"},
    "mars2/code_stack": {"sampling"},
    **{f"mars2/{setting}_no_shaping": {"returns"} for setting in ("code", "cpu")},
    **{f"mars2/{setting}_same_model": {"team"} for setting in ("code", "cpu")},
    **{f"mars2/{setting}_search60": {"validation"} for setting in ("code", "cpu")},
    **{f"mars2/{setting}_single": {"team", "sampling", "validation"} for setting in ("code", "cpu")},
    "sharp/cpu_broadcast_only": {"rewards"},
    "sharp/multi_hop_broadcast_only": {"credit", "rewards"},
    **{f"sharp/{setting}_full": {"credit"} for setting in ("cpu", "multi_hop")},
    "sharp/cpu_rescore": {"credit"},
    **{
        f"sharp/{setting}_matpo": {*COMPARED, "credit", "rewards", "returns", "team"}
        for setting in ("multi_hop", "web")
    },
    **{f"sharp/{setting}_grpo": {*COMPARED, "credit", "rewards", "returns"} for setting in ("cpu", "multi_hop")},
    **{
        f"sharp/{setting}_single_agent": {*COMPARED, "credit", "rewards", "returns", "workflow"}
        for setting in ("cpu", "multi_hop", "web")
    },
    **{
        f"sharp/{setting}_{which}": {"credit"}
        for setting in ("cpu", "multi_hop")
        for which in ("shapley", "sampled_shapley")
    },
    **{f"sharp/{setting}_separate_policies": {"team"} for setting in ("cpu", "multi_hop")},
    **{f"sharp/{setting}_turn_groups": {"comparison"} for setting in ("cpu", "multi_hop")},
}
"""Variant -> the parts of the method that it changes; everything else is as in the method."""

VARIANTS = [script for script in SCRIPTS if base_of(script)]


def test_every_variant_has_its_line() -> None:
    assert {name_of(script) for script in VARIANTS} == set(DIFFERS)


@pytest.mark.parametrize("script", VARIANTS, ids=name_of)
def test_a_variant_differs_where_it_says_so_and_nowhere_else(script: Path) -> None:
    base = base_of(script)
    assert base is not None
    assert {aspect(name) for name in differs(script, base)} == DIFFERS[name_of(script)], differs(script, base)


def of(name: str) -> dict[str, Any]:
    paper, _, setting = name.partition("/")
    return essence(RECIPES / paper / f"run_{setting}.sh")


@pytest.mark.parametrize("setting", ["cpu", "math", "plan_path"])
def test_turn_blind_groups_of_at_grpo(setting: str) -> None:
    assert of(f"at_grpo/{setting}")["group"] == ["uid", "turn", "agent", "slot"]
    blind = of(f"at_grpo/{setting}_grpo")
    assert (blind["group"], blind["sampler"]) == (["uid"], "independent")
    assert of(f"at_grpo/{setting}_episodes")["group"] == ["uid", "turn", "agent", "slot"]


def test_roles_on_different_scales_of_at_grpo() -> None:
    plain, paid = of("at_grpo/cpu"), of("at_grpo/cpu_paid")
    assert (plain["agent planner"], paid["agent planner"]) == (
        ("planner", "at-bee-line"),
        ("planner", "at-bee-line-paid"),
    )
    blind, base = (RECIPES / "at_grpo" / f"run_cpu_{name}.sh" for name in ("paid_grpo", "grpo"))
    assert differs(blind, base).keys() == {"agent planner"}


@pytest.mark.parametrize("setting", ["cpu", "math", "search"])
def test_global_normalisation_of_dr_mas(setting: str) -> None:
    assert of(f"dr_mas/{setting}")["group"] == ["uid", "agent"]
    for one in ("grpo", "trajectory_mean"):
        assert of(f"dr_mas/{setting}_{one}")["group"] == ["uid"]
        assert "amplification" in of(f"dr_mas/{setting}_{one}")["metrics"]
    assert of(f"dr_mas/{setting}_trajectory_mean")["sample"] == "session_mean"


def test_an_agent_that_acts_rarely_of_dr_mas() -> None:
    blind, base = (RECIPES / "dr_mas" / f"run_cpu_{name}.sh" for name in ("rare_grpo", "rare"))
    assert {aspect(name) for name in differs(blind, base)} == {"comparison"}


@pytest.mark.parametrize("setting", ["cpu", "multi_hop"])
def test_broadcast_only_of_sharp(setting: str) -> None:
    method, only = of(f"sharp/{setting}"), of(f"sharp/{setting}_broadcast_only")
    assert [method[name] for name in ("w_broadcast", "w_marginal", "w_tool")] == [0.9, 0.9, 0.1]
    assert [only[name] for name in ("w_broadcast", "w_marginal", "w_tool")] == [0.9, 0.0, 0.0]


@pytest.mark.parametrize("setting", ["cpu", "code"])
def test_twice_the_same_model_of_mars2(setting: str) -> None:
    def models(name: str) -> set[Any]:
        found = {key: value["model"] for key, value in of(name).items() if key.startswith("policy ")}
        assert len(found) == 2
        return {model if isinstance(model, str) else model[0] for model in found.values()}

    assert len(models(f"mars2/{setting}")) == 2
    assert len(models(f"mars2/{setting}_same_model")) == 1


SINGLES = [each for each in VARIANTS if each.stem.endswith(("_single", "_single_agent"))]


@pytest.mark.parametrize("script", SINGLES, ids=name_of)
def test_a_single_agent_has_one_policy(script: Path) -> None:
    learning = {name for name, value in essence(script).items() if name.startswith("policy ") and value["trained"]}
    acting = {value[0] for name, value in essence(script).items() if name.startswith("agent ")}
    assert len(learning) == len(acting) == 1


@pytest.mark.parametrize("setting", ["code", "cpu"])
def test_magrpo_without_its_tree_and_turn_blind(setting: str) -> None:
    method = of(f"magrpo/{setting}")
    assert (method["sampler"], method["loss"], method["group"]) == (
        "joint-tree",
        "reinforce",
        ["uid", "parent", "agent", "slot"],
    )
    assert of(f"magrpo/{setting}_episodes")["group"] == ["uid", "turn", "agent", "slot"]
    assert of(f"magrpo/{setting}_grpo")["group"] == ["uid"]


# Where values are from

ORIGINS = ("paper", "authors' code", "ours")


@pytest.mark.parametrize("page", sorted(RECIPES.glob("*/README.md")), ids=lambda page: page.parent.name)
def test_a_readme_says_where_each_value_is_from(page: Path) -> None:
    """A table of every recipe's README has a last column "source ...", which is filled in each row."""
    tables = re.findall(r"(?:^\|.*\n)+", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    rows = [
        [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in table.splitlines()]
        for table in tables
    ]
    found = [table for table in rows if table[0][-1].startswith("source")]
    assert found, f"{page} has no table with the column 'source'"
    for header, _, *body in found:
        for row in body:
            assert len(row) == len(header), row
            assert any(origin in row[-1] for origin in ORIGINS) or row[0] == "scripts", row


def test_every_folder_of_scripts_has_such_a_readme() -> None:
    assert {script.parent for script in SCRIPTS} <= {page.parent for page in RECIPES.glob("*/README.md")}
