"""What the README shows runs: its one-file plugin with its recipe; and the recipe of docs/gpu.md, up to the models."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from marl_verl import plugins
from marl_verl.episode import Act
from marl_verl.errors import MarlError
from marl_verl.testing import ScriptedPolicy, check_workflow
from marl_verl.trainer.prepare import plan_run

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
GPU = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
QUICKSTART = ROOT / "recipes" / "quickstart"


def blocks(language: str, page: str = README) -> list[str]:
    """The code of one language in a page, in order."""
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


@pytest.fixture
def known() -> Iterator[plugins.Plugins]:
    """The plugins with README's file."""
    plugins.use_files(plugins.read_files([QUICKSTART / "my_team.py"]))
    yield plugins.load()
    plugins.use_files([])


def test_the_files_are_those_of_the_quickstart() -> None:
    assert blocks("python") == [(QUICKSTART / "my_team.py").read_text(encoding="utf-8")]
    assert blocks("yaml") == [(QUICKSTART / "my_team.yaml").read_text(encoding="utf-8")]


def largest(act: Act) -> str:
    return max(filter(str.isdigit, str(act.observation)))


def test_the_workflow_and_the_task_work_together(known: plugins.Plugins) -> None:
    tasks = known.get("tasks", "largest-digit")()
    task = tasks.generate("train", 5, 0)[3]
    policy = ScriptedPolicy({"sender": largest, "answerer": largest})
    run = check_workflow(known.get("workflows", "send-and-answer")(), task, policy)
    assert tasks.score(task, run.answer) == 1.0
    train, test = ({task.id for task in tasks.generate(split, 50, 0)} for split in ("train", "test"))
    assert not train & test


def test_its_demonstrations_are_right_in_the_share_asked_for(known: plugins.Plugins) -> None:
    tasks = known.get("tasks", "largest-digit")()
    for agent in ("sender", "answerer"):
        pairs = tasks.demonstrations(agent, 200, 0, 1.0)
        assert all(answer == max(filter(str.isdigit, seen)) for seen, answer in pairs)
        words = {word for pair in pairs for text in pair for word in text.split()}
        assert words <= set(tasks.vocabulary())


@pytest.mark.slow
def test_the_gpu_recipe_is_right_up_to_its_models(tmp_path: Path) -> None:
    (tmp_path / "my_team.py").write_text(blocks("python")[0], encoding="utf-8")
    (tmp_path / "team.yaml").write_text(blocks("yaml", GPU)[0], encoding="utf-8")
    with pytest.raises(MarlError, match="no model folder of policy 'sender'"):
        plan_run(tmp_path / "team.yaml", [])
    plugins.use_files([])
