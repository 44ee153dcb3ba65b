"""What README and the first tutorial show runs: their one-file plugins and recipes; and the recipe of docs/gpu.md."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from marl_verl_testing import ScriptedPolicy, check_workflow

from marl_verl import plugins
from marl_verl.cli.main import main
from marl_verl.episode import Act, Action
from marl_verl.errors import MarlError
from marl_verl.run.prepare import plan_run

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TUTORIAL = (ROOT / "docs" / "tutorial-first-team.md").read_text(encoding="utf-8")
GPU = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
QUICKSTART = ROOT / "recipes" / "quickstart"


def blocks(language: str, page: str = README) -> list[str]:
    """The code of one language in a page, in order."""
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


@pytest.fixture
def known() -> Iterator[plugins.Plugins]:
    """The plugins with the tutorial's file."""
    plugins.use_files(plugins.read_files([QUICKSTART / "my_team.py"]))
    yield plugins.load()
    plugins.use_files([])


def test_the_files_are_those_of_the_quickstart() -> None:
    assert blocks("python") == [(QUICKSTART / "first_team.py").read_text(encoding="utf-8")]
    assert len(blocks("python")[0].splitlines()) <= 25
    assert blocks("python", TUTORIAL)[0] == (QUICKSTART / "my_team.py").read_text(encoding="utf-8")
    assert blocks("yaml", TUTORIAL)[0] == (QUICKSTART / "my_team.yaml").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_first_example_is_a_team(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Saved as README says, with README's command; perfect agents succeed, and one that sends less is not rewarded."""
    (tmp_path / "first_team.py").write_text(blocks("python")[0], encoding="utf-8")
    command = re.search(r"^marl-verl (train [^#]*)", README.replace("\\\n", ""), re.MULTILINE)
    assert command is not None
    words = [str(tmp_path / word) if word == "first_team.py" else word for word in shlex.split(command[1])]
    assert main([*words, "--dry-run"]) == 0
    assert "role reward sends-all" in capsys.readouterr().out
    plugins.use_files(plugins.read_files([tmp_path / "first_team.py"]))
    parts = plugins.load()
    task = parts.get("tasks", "inventory")().generate("train", 1, 0)[0]
    digits = task.data["digits"]
    agents = {"holder": " ".join(digits), "asker": digits[task.data["index"] - 1]}
    run = check_workflow(parts.get("workflows", "send-and-ask")(), task, ScriptedPolicy(agents))
    assert parts.get("tasks", "inventory")().score(task, run.answer) == 1.0
    for sent, reward in ((" ".join(digits), 1.0), (digits[0], 0.0)):
        turn: Any = SimpleNamespace(action=Action(sent))
        assert parts.get("rewards", "sends-all")(task, turn, None) == reward
    plugins.use_files([])


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


@pytest.mark.slow
def test_the_gpu_recipe_is_right_up_to_its_models(tmp_path: Path) -> None:
    (tmp_path / "my_team.py").write_text(blocks("python", TUTORIAL)[0], encoding="utf-8")
    (tmp_path / "team.yaml").write_text(blocks("yaml", GPU)[0], encoding="utf-8")
    with pytest.raises(MarlError, match="no model folder of policy 'sender'"):
        plan_run(tmp_path / "team.yaml", [])
    plugins.use_files([])
