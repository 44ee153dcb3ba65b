"""A person in the team, at a pseudoterminal and on a page."""

import asyncio
import os
import pty
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from types import SimpleNamespace

import pytest
from marl_verl_report.human import Human, Page, human, human_in_training
from marl_verl_testing import ScriptedContext, ScriptedPolicy

from marl_verl import Task, Workflow
from marl_verl.algo.sampling import drive
from marl_verl.episode import Act, Action, Journal, Team
from marl_verl.episode.messages import Message, message_text
from marl_verl.errors import MarlError

ASKED = [{"role": "user", "content": "your \x1b[31mmove"}]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The other end of the terminal that is standard input."""
    other, own = pty.openpty()
    with open(own, encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield other
    os.close(other)


def test_each_line_is_an_action_until_ctrl_d(terminal: int, capfd: pytest.CaptureFixture[str]) -> None:
    async def acts(person: Human) -> list[str]:
        os.write(terminal, b"\nnorth\nsouth\n")
        said = await asyncio.gather(*(person(ASKED, Random()) for _ in range(2)))  # one after the other
        with pytest.raises(TimeoutError):  # as after marl.rollout.act_seconds
            await asyncio.wait_for(person(ASKED, Random()), 0.05)
        os.write(terminal, b"east\n\x04")
        said.append(await person(ASKED, Random()))
        left = await asyncio.gather(*(person(ASKED, Random()) for _ in range(2)), return_exceptions=True)
        assert all(isinstance(error, MarlError) for error in left)
        return said

    human.check(training=False, local=True)
    assert asyncio.run(acts(human)) == ["north", "south", "east"]
    human.check(training=False, local=True)  # another evaluation
    os.write(terminal, b"west\n")
    assert asyncio.run(human(ASKED, Random())) == "west"
    assert "user: your \\x1b[31mmove" in capfd.readouterr().err


class Moves(Workflow):
    async def run(self, task: Task, team: Team) -> str:
        moves = await team.act({"person": "first", "bot": "first"})
        lanes = (team["person"].act(f"{moves} {slot}", slot=slot) for slot in ("left", "right"))
        return " ".join([action.text for action in await asyncio.gather(*lanes)])


def test_acts_of_a_person_are_replayed_from_every_prefix_without_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def ask(messages: Sequence[Message]) -> str:
        asked.append(message_text(messages[-1]))
        return f"{len(asked[-1])} letters"

    async def played(order: int, journal: Journal | None = None) -> list[tuple[str, str]]:
        async def act(act: Act) -> Action:
            action = await context.act(act, 0)
            return replace(action, text=await human(act.observation, Random())) if act.agent == "person" else action

        context = ScriptedContext(Moves(), Task("t", ""), ScriptedPolicy({"person": "", "bot": "go"}), order=order)
        async with context.start(0, journal) as run:
            await drive(run, act)
            journals.append(run.journal)
            return [(act.agent, action.text) for act, action in run.turns]

    monkeypatch.setattr(Human, "page", SimpleNamespace(ask=ask))
    human.check(training=False, local=True)
    journals: list[Journal] = []
    first = asyncio.run(played(0))
    assert [agent for agent, _ in first] == ["person", "bot", "person", "person"]
    for count in range(len(first) + 1):
        asked.clear()
        assert asyncio.run(played(count, journals[0].prefix(count))) == first
        assert len(asked) == [agent for agent, _ in first[count:]].count("person")


def test_a_person_is_refused_without_a_terminal_and_in_a_training_run(terminal: int) -> None:
    human_in_training.check(training=True, local=True)
    for training, local, why in ((True, True, "human-in-training"), (False, False, "have none")):
        with pytest.raises(MarlError, match=why):
            human.check(training, local)
    with open(os.devnull) as sys.stdin, pytest.raises(MarlError, match="standard input is none"):
        human.check(training=False, local=True)


async def test_a_page_asks_in_place_of_the_terminal_until_the_person_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Human, "page", page := Page())
    human.check(training=False, local=True)
    with pytest.raises(TimeoutError):  # as after marl.rollout.act_seconds
        await asyncio.wait_for(human(ASKED, Random()), 0.05)
    acting = [asyncio.ensure_future(human(ASKED, Random())) for _ in range(2)]
    for number, text in ((2, "north"), (3, None)):  # one after the other
        while page.question is None:
            await asyncio.sleep(0)
        assert page.question == {"number": number, "observation": [["user", ASKED[0]["content"]]]}
        await asyncio.to_thread(page.answer, number, text)
        for late in (number - 1, number):
            with pytest.raises(MarlError, match="no longer asked"):
                page.answer(late, "south")
    assert await acting[0] == "north"
    for left in (acting[1], human(ASKED, Random())):
        with pytest.raises(MarlError, match="has left"):
            await left
