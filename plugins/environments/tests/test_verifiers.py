"""Environments of verifiers: a chat with one seat, and a game of several turns with two."""

import asyncio
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verifiers", reason="verifiers is not installed: it needs another openai than openai-agents")

from marl_verl_environments.verifiers import Verifiers, VerifiersTasks, seat_reward
from marl_verl_testing import ScriptedPolicy, check_task
from marl_verl_testing.scripted import ScriptedContext

from marl_verl import Task, plugins
from marl_verl.algo.sampling import Independent, Sample
from marl_verl.errors import MarlError

SUMS = """
    import verifiers.v1 as vf

    class Data(vf.TaskData):
        answer: str

    class Sum(vf.Task[Data, vf.State, vf.TaskConfig]):
        @vf.reward
        async def right(self, trace: vf.Trace) -> float:
            return float(trace.last_reply.strip() == self.data.answer)

    class Sums(vf.Taskset[Sum, vf.TasksetConfig]):
        def load(self):
            for a in range(10):
                for b in range(10):
                    yield Sum(Data(prompt=f"{a} + {b}", answer=str(a + b)), self.config.task)

    __all__ = ["Sums"]
"""
GUESS = """
    import verifiers.v1 as vf

    class Data(vf.TaskData):
        number: int

    class Number(vf.Task[Data, vf.State, vf.TaskConfig]):
        pass

    class Roles(vf.EnvConfig):
        guesser: vf.AgentConfig = vf.AgentConfig()
        judge: vf.AgentConfig = vf.AgentConfig()

    class Guess(vf.Env[Roles]):
        async def run(self, task, agents):
            turns = 1
            async with agents.guesser.interaction(task) as interaction:
                segment = await interaction.turn()
                while int(segment.last_reply) != task.data.number and turns < 3:
                    lower = int(segment.last_reply) < task.data.number
                    segment = await interaction.turn("higher" if lower else "lower")
                    turns += 1
            interaction.trace.record_reward("soon", 1 / turns, 1.0)
            verdict = await agents.judge.run(task.with_data(prompt=f"Is it {segment.last_reply}?"))
            verdict.record_reward("yes", float(verdict.last_reply == "yes"), 1.0)

    class Numbers(vf.Taskset[Number, vf.TasksetConfig]):
        def load(self):
            for n in range(40):
                yield Number(Data(prompt="Guess.", number=n), self.config.task)

    __all__ = ["Numbers", "Guess"]
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("sums_vf", SUMS), ("guess_vf", GUESS)):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(tmp_path)


def sampled(tasks: VerifiersTasks, task: Task, episodes: int = 1, **replies: Any) -> Sample:
    context = ScriptedContext(Verifiers(), task, ScriptedPolicy(replies), tasks=tasks)
    return asyncio.run(Independent(episodes).sample(context))


def test_a_seat_is_an_agent_and_the_reward_is_the_environments() -> None:
    tasks = VerifiersTasks(env="sums_vf")
    task = tasks.generate("train", 40, 0)[-1]
    for reply, score in ((str(eval(task.prompt)), 1.0), ("0", 0.0)):
        (episode,) = sampled(tasks, task, agent=reply).episodes
        (turn,) = episode.turns
        assert (turn.agent, turn.action.text, turn.observation[-1]["content"]) == ("agent", reply, task.prompt)
        assert turn.action.response_ids == list(reply.encode())  # what the policy sampled
        assert episode.score == score


def test_roles_are_agents_and_a_conversation_has_turns() -> None:
    tasks = VerifiersTasks(env="guess_vf")
    task = next(each for each in tasks.generate("train", 20, 0) if each.data["idx"] > 1)
    number = str(task.data["idx"])
    sample = sampled(tasks, task, 2, guesser=["1", number], judge="yes")
    for episode in sample.episodes:
        said = [(turn.agent, turn.turn, turn.action.text, turn.observation[-1]["content"]) for turn in episode.turns]
        assert said[:2] == [("guesser", 0, "1", "Guess."), ("guesser", 1, number, "higher")]
        assert said[2:] == [("judge", 0, "yes", f"Is it {number}?")]
        assert episode.answer == {"reward": 1.5, "rewards": {"guesser": 0.5, "judge": 1.0}}
        assert [seat_reward(task, turn, episode) for turn in episode.turns] == [0.5, 0.5, 1.0]
    assert len(sample.episodes) == 2


def test_the_kit_accepts_the_task_set() -> None:
    tasks = VerifiersTasks(env="sums_vf")
    check_task(tasks, lambda task: [{"reward": 0.0, "rewards": {}}, {"reward": 1.0, "rewards": {}}])
    assert 0 < len(tasks.generate("train", 1000, 0)) < 1000
    assert plugins.load().get("tasks", "verifiers") is VerifiersTasks


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(MarlError, match="verifiers 'sum_vf' cannot be used: taskset 'sum_vf' not found"):
        VerifiersTasks(env="sum_vf")
    with pytest.raises(MarlError, match="gueser Extra inputs"):
        VerifiersTasks(env="guess_vf", arguments={"gueser": {"max_turns": 1}})
    tasks = VerifiersTasks(env="guess_vf")
    failed = sampled(tasks, tasks.generate("train", 1, 0)[0], guessr="1").failures
    assert "unknown seat 'guessr': did you mean 'guesser'?" in failed[0].trace
