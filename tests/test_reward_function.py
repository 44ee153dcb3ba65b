"""A user's function scores the answers: `marl.task.reward`, or verl's custom reward settings."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from marl_verl import plugins
from marl_verl.algo.sampling.context import judged
from marl_verl.cli.main import main
from marl_verl.config.reward_function import FunctionScored, use_reward_function
from marl_verl.errors import MarlError
from marl_verl.options import build
from marl_verl.run import prepare
from marl_verl.run.progress import Display
from marl_verl.tasks.base import Task

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
RECIPE = Path(__file__).parents[1] / "recipes" / "quickstart" / "inventory.yaml"


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "my_reward.py").write_text(REWARDS)
    monkeypatch.chdir(tmp_path)
    yield
    plugins.use_files([])


def config(**task: Any) -> Any:
    verl = {"custom_reward_function": {"path": None, "name": "compute_score"}}
    old = {"path": None, "name": None}
    marl = {"task": {"name": "inventory", "options": {"length": 5}, "reward": None, **task}}
    return OmegaConf.create({"marl": marl, "reward": verl, "custom_reward_function": old})


def scored(given: Any) -> FunctionScored:
    plugins.use_files(use_reward_function(given, Path("mine").resolve()))
    assert given.marl.task.name == "function-scored"
    return build(FunctionScored, OmegaConf.to_container(given.marl.task.options), "marl.task.options")


def test_the_function_scores_what_another_task_set_generates() -> None:
    tasks = scored(config(reward="my_reward.py:compute_score"))
    first = tasks.generate("train", 3, 0)[0]
    assert len(first.data["digits"]) == 5  # the options are those of the wrapped task set
    task = Task("t", "2+2", {"answer": "4"})
    assert asyncio.run(judged(tasks, task, "4")) == (1.0, True)
    assert asyncio.run(judged(tasks, task, {"a": 1})) == (0.0, False)
    seen = tasks._fn.__globals__["seen"]
    assert seen == [("inventory", "4", "4", {"answer": "4"}), ("inventory", '{"a": 1}', "4", {"answer": "4"})]


def test_rows_of_verl_give_the_arguments() -> None:
    tasks = scored(config(name="???", options={}, reward="my_reward.py"))  # verl's default name
    data = {"data_source": "gsm8k", "reward_model": {"ground_truth": "7"}, "extra_info": {"index": 3}}
    assert asyncio.run(judged(tasks, Task("t", "p", data), "7")) == (1.0, True)
    assert tasks._fn.__globals__["seen"][-1] == ("gsm8k", "7", "7", {"index": 3})
    with pytest.raises(NotImplementedError, match=r"set marl\.task\.train_file"):
        tasks.generate("train", 1, 0)


BESIDE = {
    "rewards/countdown.py": "from clean import text\nfrom shared.helpers import same\n"
    "def compute_score_batch(data_sources, solution_strs, ground_truths, extra_infos, bonus=0):\n"
    "    return [same(text(a), b) + bonus for a, b in zip(solution_strs, ground_truths)]\n",
    "rewards/clean.py": "import json\nimport numpy\nfrom marl_verl.tasks import Task\n\n"
    "def text(answer):\n    return answer.strip()\n",
    "shared/helpers.py": "from . import equal\ndef same(a, b):\n    return float(equal.equal(a, b))\n",  # no __init__
    "shared/equal.py": "def equal(a, b):\n    return a == b\n",
    "marl_verl/tasks.py": "raise RuntimeError('a clone: the installed one comes first')\n",
    "rewards/numpy.py": "raise RuntimeError('the installed one comes first')\n",
    "rewards/unused.py": "raise RuntimeError('not imported')\n",
}


def test_a_function_as_users_of_verl_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folder of the script, with modules beside it and below the working directory, of a batch, with kwargs;
    in another process and folder it works from the copies."""
    for name, text in BESIDE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    given = config()
    setting = {"path": "rewards/countdown.py", "name": "compute_score_batch", "reward_kwargs": {"bonus": 1}}
    OmegaConf.update(given, "reward.custom_reward_function", setting)
    files = use_reward_function(given, Path("mine").resolve())
    modules = {"clean.py", "shared/helpers.py", "shared/equal.py"}
    assert {file.name for file in files} == {"reward/countdown.py", *(f"reward/modules/{name}" for name in modules)}
    plugins.copy_files(files, tmp_path / "run")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    plugins.use_files(plugins.files_of_run(tmp_path / "run"))
    plugins.load()
    tasks = build(FunctionScored, OmegaConf.to_container(given.marl.task.options), "marl.task.options")
    for seconds in (None, 30.0):
        assert asyncio.run(judged(tasks, Task("t", "p", {"answer": "4"}), " 4 ", seconds)) == (2.0, True)


def test_an_async_function_is_awaited() -> None:
    tasks = scored(config(reward="my_reward.py:later"))
    assert asyncio.run(judged(tasks, Task("t", "p"), "x")) == (0.25, False)
    assert asyncio.run(judged(tasks, Task("t", "p"), "x", 5.0)) == (0.25, False)


@pytest.mark.parametrize("returned", ["'good'", "float('nan')"])
def test_a_function_that_returns_no_number_is_refused_by_the_dry_run(
    tmp_path: Path, returned: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrong.py").write_text(f"def compute_score(**given):\n    return {returned}\n")
    small = ("marl.task.train_size=40", "marl.task.reward=wrong.py")
    assert main(["train", str(RECIPE), "--dry-run", *small]) == 2
    assert "marl.task.reward: the score of 'wrong.py:compute_score' must be " in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_copies_the_file_and_keeps_its_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "mine" / "team.yaml"
    recipe.write_text(RECIPE.read_text())
    reward = "reward.custom_reward_function.path=my_reward.py"
    assert main(["train", str(recipe), "--dry-run", reward]) == 0
    assert "task    inventory, scored by my_reward.py:compute_score (" in capsys.readouterr().out
    assert main(["train", str(recipe), "--dry-run", "marl.task.reward=my_reward.py:two"]) == 2
    assert "reward function 'my_reward.py:two' cannot be called" in capsys.readouterr().err
    monkeypatch.setattr(
        "marl_verl_tiny.model.ensure_all", lambda specs, progress: [Path("/cache") / s.agents[0] for s in specs]
    )
    run = prepare.make_run_directory(prepare.plan_run(recipe, [reward, "marl.task.train_size=40"]), Display())
    assert (run / "plugins" / "reward" / "my_reward.py").read_text() == REWARDS
    (tmp_path / "mine" / "my_reward.py").unlink()
    plugins.use_files([])
    plugins.use_files(plugins.files_of_run(run))
    stored: Any = OmegaConf.to_container(OmegaConf.load(run / "config.yaml").marl.task)
    tasks = build(FunctionScored, stored["options"], "marl.task.options")
    assert asyncio.run(judged(tasks, Task("t", "p", {"answer": "4"}), "4")) == (1.0, True)
    used = {each["distribution"] for each in json.loads((run / "plugins.json").read_text())}
    assert "reward/my_reward.py" in used
    (run / "checkpoints" / "step_1").mkdir(parents=True)
    with pytest.raises(MarlError, match=r"'marl\.task\.reward' cannot be changed in an existing run"):
        prepare.check_unchanged(["marl.task.reward=my_reward.py:later"])
