"""`team.memory`: replay of reads and writes, and the notes of a step whatever arrives first."""

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest
from marl_verl_search import memory
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_sampler, check_workflow, shown
from marl_verl_testing.workflows import Hashed

from marl_verl import Task, Workflow
from marl_verl.algo.sampling import Independent
from marl_verl.backend.protocol import Report
from marl_verl.episode import WorkflowError

TASK = Task("t", "ada")


def says(act: Any, session: int = 0, candidate: Any = None) -> str:
    return ("ada", "ben", "zoe")[(len(shown(act)) + session) % 3]


OPENED = {"opening": {"ada": "red", "ben": "blue mill", "cleo": "red mill"}, "readers": ["reader"]}
POLICY = ScriptedPolicy({"reader": says})


class Notes(Workflow):
    """Two lanes read, act and write at the same time; later reads depend on the actions. `opened`: as the run's option,
    also in the processes that repeat the workflow."""

    opened: Any = None

    async def run(self, task: Task, team: Any) -> str:
        memory.check(self.opened)

        async def lane(number: int) -> str:
            seen = await team["reader"].memory.search(f"{task.prompt} mill", k=2)
            first = await team["reader"].act(f"{number} {seen}", slot=f"lane{number}")
            text = await team["reader"].memory.get(first.text)
            await team.memory.put(first.text, f"{text} {number}")
            return (await team["reader"].act(f"then {text}", slot=f"lane{number}")).text

        answers = await asyncio.gather(lane(0), lane(1))
        await team.memory.note(f"answered {answers}")
        return " ".join(answers)


def test_reads_and_writes_are_replayed_from_every_prefix() -> None:
    run = check_workflow(Notes(opened=OPENED), TASK, POLICY)
    assert "['ada: red', 'ben: blue mill']" in shown(run.turns[0][0])
    assert [call.agent for call in run.journal.calls()].count("reader") == 4
    check_sampler(Independent(3), Notes(opened=OPENED), TASK, POLICY, tasks=Hashed())


def test_a_step_leaves_the_same_notes_in_any_order_of_arrival() -> None:
    async def sampled(number: int) -> Report:
        context = ScriptedContext(Notes(opened=OPENED), Task(f"t{number}", f"ada {number}"), POLICY)
        episodes = (await Independent(3).sample(context)).episodes
        assert not memory.written([replace(episode, finished=False) for episode in episodes])
        return Report(f"s1t{number:05d}", "", written={"memory": memory.written(random.sample(episodes, 3))})

    first: list[tuple[str, str]] = []
    for _ in range(5):
        reports = [asyncio.run(sampled(number)) for number in random.sample(range(4), 4)]
        state = memory.State({**OPENED, "notes": 4, "characters": 20})
        state.record(reports)
        assert state.metrics() == {"memory/notes": 4, "memory/writes": 4 * 3 * 3}
        assert all(len(text) <= 20 for note in state.notes.items() for text in note)
        first = first or list(state.notes.items())
        assert list(state.notes.items()) == first


def test_the_newest_notes_stay() -> None:
    state = memory.State({"opening": {"one": "1", "two": "two", "three": "3"}, "notes": 2})
    assert list(state.notes) == ["two", "three"]
    state.record([Report("s1t0", "", written={"memory": [["two", "two"], ["key", "a"], ["key", "b"]]}), Report("", "")])
    assert list(state.notes.items()) == [("two", "two"), ("key", "b")]
    state.record([Report("s2t0", "", written={"memory": [["two", ""]]})])
    assert list(state.notes) == ["key"]
    assert not memory.State({"opening": {"one": "1"}, "notes": 0}).notes


@pytest.mark.parametrize(("option", "message"), [(None, "set marl.run.memory"), ({"readers": ["x"]}, "may not read")])
def test_what_a_run_does_not_allow_ends_the_episode(option: Any, message: str) -> None:
    with pytest.raises(WorkflowError, match=message):
        check_workflow(Notes(opened=option), TASK, POLICY)
