"""Scripted policies: a plugin's function acts in place of a model."""

import asyncio
from random import Random
from typing import Any

import pytest
from marl_verl_self_play.kuhn import CARDS, INFORMATION_SETS, equilibrium, exploitability, legal_moves
from marl_verl_self_play.kuhn_poker import kuhn_equilibrium, observation
from marl_verl_testing import ScriptedContext, ScriptedPolicy

from marl_verl.algo.sampling import Independent
from marl_verl.backend.rollout.clients import ScriptClient
from marl_verl.episode import Act, Team, Workflow
from marl_verl.tasks import Task

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}
ASKED = [{"role": "user", "content": "your move"}]


def said(act: Any, seed: int | None = 7) -> str:
    client = ScriptClient("bot", "mine", act, {**SAMPLING, "repetition_penalty": 1.0})
    assert client.too_long(ASKED, None) is None
    return asyncio.run(client.answer(ASKED, {**client.sampling, "seed": seed}, "u-0", Act("bot", "0", 0, 0, ()))).text


def test_it_gets_the_messages_and_equal_random_numbers() -> None:
    def act(messages: list[dict[str, Any]], random: Random) -> str:
        return f"{messages[-1]['content']} {random.random()}"

    async def later(messages: list[dict[str, Any]], random: Random) -> str:
        return act(messages, random)

    assert said(act).startswith("your move 0.")
    assert said(act) == said(act) == said(later) != said(act, 8)


class Twice(Workflow):
    async def run(self, task: Task, team: Team) -> str:
        return "".join([(await team["bot"].act(word)).text for word in ("one", "two")])


async def test_episodes_that_must_be_alone_follow_each_other() -> None:
    sessions: list[int] = []

    def reply(act: Act, session: int, candidate: Any) -> str:
        sessions.append(session)
        return "x"

    context = ScriptedContext(Twice(), Task("t", "t", {}), ScriptedPolicy({"bot": reply}))
    context.alone = asyncio.Lock()
    await Independent(3).sample(context)
    assert sessions == [0, 0, 1, 1, 2, 2]


def test_the_equilibrium_player_is_one() -> None:
    random, played = Random(0), {}
    for name in (name for names in INFORMATION_SETS for name in names):
        messages = [{"role": "user", "content": observation(name[0], name[1:])}]
        moves = [kuhn_equilibrium(messages, random) for _ in range(3000)]
        played[name] = moves.count(legal_moves(name[1:])[1]) / len(moves)
        assert played[name] == pytest.approx(equilibrium(1 / 6)[name], abs=0.04)
    assert exploitability(played) < 0.03
    assert len(played) == 4 * len(CARDS)
