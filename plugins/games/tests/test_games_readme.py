"""The README names every registered part, and its example of a prompt is what an agent sees."""

from __future__ import annotations

import re
from pathlib import Path

from marl_verl_games.game_workflows import PLAYER, GamePlayer
from marl_verl_testing import ScriptedPolicy, check_workflow, shown

from marl_verl import Task

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_prompt_shown_is_what_an_agent_sees() -> None:
    (prompt,) = re.findall(r"```\n(Sokoban: .*?)\n```", README, re.DOTALL)
    rows = re.findall(r"^#.{4}#$", prompt, re.MULTILINE)
    task = Task("shown", "", {"game": "sokoban", "rows": rows})
    run = check_workflow(GamePlayer(turns=5), task, ScriptedPolicy({PLAYER: ["[L]", "[U, D, R, L, D, R]"]}))
    assert shown(run.turns[1][0]) == prompt
