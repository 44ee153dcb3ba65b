"""Team against team: two teams answer the same question of the inventory game, and the better one wins."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_sampler, check_task, check_workflow, shown
from marl_verl_tiny.inventory_match import InventoryMatch
from marl_verl_tiny.workflows import InventoryMatchGame

from marl_verl import Task, plugins
from marl_verl.algo.sampling import Independent

DIGITS = Task("i", "digits", {"digits": ["4", "7", "1", "9"], "index": 2})
SIDES = {f"{side}-{role}": side for side in ("red", "blue") for role in ("holder", "asker")}


def match(red: str, blue: str) -> ScriptedPolicy:
    return ScriptedPolicy({"red-holder": "4 7 1 9", "red-asker": red, "blue-holder": "4 4", "blue-asker": blue})


@pytest.mark.parametrize(
    ("red", "blue", "won", "both"),
    [("7", "7", 0, True), ("7", "1", 1, False), ("4", "7", -1, False), ("4", "x", 0, False)],
)
def test_a_team_wins_if_it_alone_is_right(red: str, blue: str, won: int, both: bool) -> None:
    run = check_workflow(InventoryMatchGame(), DIGITS, match(red, blue))
    assert run.answer["answers"] == {"red": red, "blue": blue}
    assert ("blue-holder", "0") in run.invalid
    assert {act.agent: shown(act) for act, _ in run.turns}["blue-asker"] == "message none index second"
    context = ScriptedContext(InventoryMatchGame(), DIGITS, match(red, blue), InventoryMatch(), sides=SIDES)
    (episode,) = asyncio.run(Independent(1).sample(context)).episodes
    assert (episode.outcomes, episode.success) == ({"red": won, "blue": -won}, both)
    assert {turn.agent: turn.team_reward for turn in episode.turns}["blue-holder"] == -won


def test_the_kit_accepts_the_task_of_two_teams() -> None:
    answer = {"text": "", "answers": {"red": "4", "blue": "7"}}
    check_task(InventoryMatch(), lambda task: [answer], count=12, scores=(-1, 1))
    same = [InventoryMatch().demonstrations(f"{side}-asker", 5, 1, 0.5) for side in ("red", "blue")]
    assert same[0] == same[1]


@pytest.mark.parametrize("name", plugins.load().names("samplers"))
def test_every_sampler_works_or_is_refused_for_sides(name: str) -> None:
    """`test_sides.py` checks the refusal, before a run starts, of those that name a reason."""
    sampler = plugins.load().get("samplers", name)()
    if sampler.one_side is not None:
        return

    def says(act: Any, session: int, candidate: Any) -> str:
        return random.Random(repr((act.key, act.observation, session, candidate))).choice("147")

    policy = ScriptedPolicy(dict.fromkeys(SIDES, says))
    check_sampler(sampler, InventoryMatchGame(), DIGITS, policy, tasks=InventoryMatch(), sides=SIDES)
