"""A user's function scores the answers: `marl.task.reward`."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from marl_verl_scripts.reward_function import FunctionScored, use_reward_function
from omegaconf import OmegaConf

from marl_verl import plugins
from marl_verl.algo.sampling.context import judged
from marl_verl.cli.main import main
from marl_verl.errors import MarlError
from marl_verl.options import build
from marl_verl.plugins import one_file
from marl_verl.run import prepare
from marl_verl.run.progress import Display
from marl_verl.tasks import Task

REWARDS = """
def compute_score(data_source, solution_str, ground_truth, extra_info, bonus=0.0):
    seen.append((data_source, solution_str, ground_truth, extra_info))
    return {"score": float(solution_str == ground_truth) + bonus, "acc": 1}

async def later(data_source, solution_str, ground_truth, extra_info=None):
    return 0.25

def two(solution, truth):
    return 1.0

seen = []
"""
RECIPE = Path(__file__).parents[3] / "recipes" / "quickstart" / "inventory.yaml"


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "my_reward.py").write_text(REWARDS)
    monkeypatch.chdir(tmp_path)


def config(**task: Any) -> Any:
    usual = {"name": "inventory", "options": {"length": 5}, "reward": None, "reward_kwargs": {}}
    return OmegaConf.create({"marl": {"task": {**usual, **task}}})


def scored(given: Any) -> FunctionScored:
    plugins.use_files(use_reward_function(given, Path("mine").resolve()))
    assert given.marl.task.name == "function-scored"
    return build(FunctionScored, OmegaConf.to_container(given.marl.task.options), "marl.task.options")


def test_the_function_scores_what_another_task_set_generates() -> None:
    tasks = scored(config(reward="my_reward.py:compute_score"))
    assert len(tasks.generate("train", 3, 0)[0].data["digits"]) == 5  # the options are those of the wrapped task set
    task = Task("t", "2+2", {"answer": "4"})
    assert asyncio.run(judged(tasks, task, "4")) == (1.0, True)
    assert asyncio.run(judged(tasks, task, {"a": 1})) == (0.0, False)
    seen = tasks._fn.__globals__["seen"]
    assert seen == [("inventory", "4", "4", {"answer": "4"}), ("inventory", '{"a": 1}', "4", {"answer": "4"})]
    assert asyncio.run(judged(tasks, task, {"text": "4", "rewards": {"holder": 0.5}})) == (1.0, True)
    assert [tasks.public_score(task, answer) for answer in ("4", "")] == [1.0, 0.0]
    assert scored(config(name="sokoban", options={}, reward="my_reward.py:compute_score")).slow
    assert scored(config(name="joint-code", options={"shift": -1}, reward="my_reward.py:compute_score")).shift == -1


def test_rows_of_verl_give_the_arguments() -> None:
    tasks = scored(config(name="???", options={}, reward="my_reward.py"))  # verl's default name
    data = {"data_source": "gsm8k", "reward_model": {"ground_truth": "7"}, "extra_info": {"index": 3}}
    assert asyncio.run(judged(tasks, Task("t", "p", data), "7")) == (1.0, True)
    assert tasks._fn.__globals__["seen"][-1] == ("gsm8k", "7", "7", {"index": 3})
    with pytest.raises(MarlError, match=r"set marl\.task\.train_file"):
        tasks.generate("train", 1, 0)


def test_a_function_with_kwargs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In another process and folder it works from its copy."""
    (tmp_path / "countdown.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info, bonus=0):\n"
        "    return float(solution_str.strip() == ground_truth) + bonus\n"
    )
    recipe = config(reward="countdown.py:compute_score", reward_kwargs={"bonus": 1})
    one_file.copy_files(use_reward_function(recipe, Path("mine").resolve()), tmp_path / "run")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    plugins.use_files(one_file.files_of_run(tmp_path / "run"))
    plugins.load()
    tasks = build(FunctionScored, OmegaConf.to_container(recipe.marl.task.options), "marl.task.options")
    for seconds in (None, 30.0):
        assert asyncio.run(judged(tasks, Task("t", "p", {"answer": "4"}), " 4 ", seconds)) == (2.0, True)


def test_an_async_function_is_awaited() -> None:
    tasks = scored(config(reward="my_reward.py:later"))
    assert asyncio.run(judged(tasks, Task("t", "p"), "x")) == (0.25, False)
    assert asyncio.run(judged(tasks, Task("t", "p"), "x", 5.0)) == (0.25, False)


@pytest.mark.parametrize("returned", ["'good'", "float('nan')"])
def test_a_dry_run_refuses_what_is_no_number(tmp_path: Path, returned: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wrong.py").write_text(f"def compute_score(**given):\n    return {returned}\n")
    assert main(["train", str(RECIPE), "--dry-run", *("marl.task.train_size=40", "marl.task.reward=wrong.py")]) == 2
    problem = "the score must be a finite number, reward function 'wrong.py:compute_score' returned"
    assert problem in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_keeps_a_copy_of_its_file(no_models: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "mine" / "team.yaml"
    recipe.write_text(RECIPE.read_text())
    reward = "marl.task.reward=my_reward.py"
    assert main(["train", str(recipe), "--dry-run", reward]) == 0
    assert "task    inventory, scored by my_reward.py:compute_score (" in capsys.readouterr().out
    assert main(["train", str(recipe), "--dry-run", "marl.task.reward=my_reward.py:two"]) == 2
    assert "reward function 'my_reward.py:two' must be " in capsys.readouterr().err
    run = prepare.make_run_directory(prepare.plan_run(recipe, [reward, "marl.task.train_size=40"]), Display())
    assert (run / "plugins" / "reward" / "my_reward.py").read_text() == REWARDS
    (tmp_path / "mine" / "my_reward.py").unlink()
    plugins.use_files([])
    plugins.use_files(one_file.files_of_run(run))
    stored: Any = OmegaConf.to_container(OmegaConf.load(run / "config.yaml").marl.task)
    tasks = build(FunctionScored, stored["options"], "marl.task.options")
    assert asyncio.run(judged(tasks, Task("t", "p", {"answer": "4"}), "4")) == (1.0, True)
    plugins_of_run = json.loads((run / "plugins.json").read_text())
    assert "reward/my_reward.py" in {plugin["distribution"] for plugin in plugins_of_run}
