"""Sides: a score for each, what every sampler, credit and return does with them, and how they are shown."""

import asyncio
import json
import zlib
from typing import Any

import numpy as np
import pytest
from marl_verl_baselines import GAE, PathSum, TreeMean
from marl_verl_inspect.replay import _score, differences, rerun
from marl_verl_mars2.algorithm import Shaped
from marl_verl_testing import ScriptedContext, ScriptedPolicy
from marl_verl_testing.rows import row

from marl_verl import Task, TaskSet, Workflow, plugins
from marl_verl.algo.advantage import Advantage, Discounted, Immediate, Returns, RowTable
from marl_verl.algo.algorithms import Algorithm
from marl_verl.algo.sampling import Independent, Sample, Sampler
from marl_verl.config.fit import SyntheticTeam, check_advantage, check_sides
from marl_verl.episode import Team
from marl_verl.episode.codec import decode_episode, encode_episode
from marl_verl.errors import MarlError
from marl_verl.team import TeamConfig
from tests.batches import team_config

TASK, SIDES = Task("t", "begin"), {"ann": "red", "bob": "blue"}
KNOWN = plugins.load()


class Duel(Workflow):
    """Ann and Bob act in turn; every state has a score."""

    async def run(self, task: Task, team: Team) -> str:
        said = task.prompt
        for _ in range(2):
            for agent in SIDES:
                said += (await team[agent].act(said)).text
                team.propose(said)
        return said


class ZeroSum(TaskSet):
    """Red gets between 1 and 2, which blue loses."""

    sides = ("red", "blue")

    def score(self, task: Task, answer: Any) -> Any:
        value = 1.0 + zlib.crc32(answer.encode()) % 97 / 97
        return {"red": value, "blue": -value}

    def public_score(self, task: Task, answer: Any) -> float:
        return 0.5


class One(TaskSet):
    """One score for both sides."""

    def score(self, task: Task, answer: Any) -> float:
        return 0.25


def context(tasks: TaskSet | None = None, sides: dict[str, str] | None = None) -> ScriptedContext:
    says: Any = lambda act, session, candidate: f"{act.agent[0]}{session}{candidate}"  # noqa: E731
    given = SIDES if sides is None else sides
    return ScriptedContext(Duel(), TASK, ScriptedPolicy({"ann": says, "bob": says}), tasks or ZeroSum(), sides=given)


def sampled(sampler: Sampler | None = None, tasks: TaskSet | None = None, **sides: str) -> Sample:
    return asyncio.run((sampler or Independent(2)).sample(context(tasks, sides or None)))


def team(**sides: str | None) -> TeamConfig:
    return team_config({name: {"policy": "p", "side": side} for name, side in (sides or SIDES).items()}, p={})


def check(sampler: Sampler | None = None, algorithm: Algorithm | None = None, tasks: TaskSet | None = None) -> None:
    samplers = {"sampler": ("its-name", sampler or Independent())}
    check_sides(samplers, algorithm or Algorithm(), team(), tasks or ZeroSum())


def test_each_turn_has_the_outcome_of_its_agents_side_and_one_number_is_everyones() -> None:
    for episode in sampled().episodes:
        value = episode.outcomes["red"]
        assert episode.score == 0
        assert value >= 1
        assert {(turn.agent, turn.team_reward) for turn in episode.turns} == {("ann", value), ("bob", -value)}
        assert episode.success  # there is a winner

    (first, _) = sampled(tasks=One()).episodes
    assert (first.outcomes, first.score, {turn.team_reward for turn in first.turns}) == ({}, 0.25, {0.25})


@pytest.mark.parametrize("name", KNOWN.names("samplers"))
def test_every_sampler_rewards_each_side_or_is_refused_before_the_start(name: str) -> None:
    sampler = KNOWN.get("samplers", name)()
    if sampler.one_side is not None:
        with pytest.raises(MarlError, match=r"'its-name' needs agents of one side, but .* 'red' and 'blue': "):
            check(sampler)
        return
    check(sampler)
    sample = sampled(sampler)
    assert {turn.agent for turn in sample.turns} == set(SIDES)
    for turn in sample.turns:
        assert (turn.components["team"] > 0) == (turn.agent == "ann")
    if not sampler.branches:
        return
    chosen = {turn.node for each in sample.episodes for turn in each.turns}
    for parent in {turn.parent for turn in sample.turns}:  # the best child, for the side of the agent that acts
        children = [turn for turn in sample.turns if turn.parent == parent]
        best = max(turn.components["team"] for turn in children)
        assert [turn.components["team"] for turn in children if turn.node in chosen] == [best]


def table(blue: float, step: float = 0.0) -> RowTable:
    """Two episodes in which both sides act twice; blue's outcomes and rewards differ by the arguments."""
    found = []
    for session in range(2):
        for index, agent in enumerate(("ann", "bob", "ann", "bob")):
            own = 1.0 + session + (blue if agent == "bob" else 0.0)
            role = 0.5 * index + (step if agent == "bob" else 0.0)
            made = row("q", session, index, index // 2, agent, role=role)
            found.append({**made, "team_reward": own, "value": 0.1 * index})
    return RowTable.from_rows(found, declared={"role"})


@pytest.mark.parametrize("kind", [Immediate, Discounted, PathSum, TreeMean, GAE, Shaped])
def test_every_return_is_of_ones_own_side_or_is_refused(kind: type[Returns]) -> None:
    algorithm = Algorithm(advantage=Advantage(returns=kind()))
    if kind.one_side is not None:
        with pytest.raises(MarlError, match=f"returns '{kind.name}' needs agents of one side, but"):
            check(algorithm=algorithm)
        return
    check(algorithm=algorithm)
    one, other = algorithm.compute(table(0.0)), algorithm.compute(table(-5.0, step=3.0))
    ann = table(0.0).agent.codes == table(0.0).agent.names.index("ann")
    assert np.array_equal(one.ret[ann], other.ret[ann])
    assert not np.array_equal(one.ret[~ann], other.ret[~ann])


@pytest.mark.parametrize("name", KNOWN.names("algorithms"))
def test_every_algorithm_computes_advantages_with_sides_or_names_the_part_that_does_not(name: str) -> None:
    algorithm = KNOWN.get("algorithms", name)
    sampler = KNOWN.get("samplers", algorithm.sampler)()
    if any(getattr(part, "one_side", None) is not None for part in [sampler, *algorithm.parts()]):
        with pytest.raises(MarlError, match="needs agents of one side"):
            check(sampler, algorithm)
        return
    check(sampler, algorithm)
    if set(algorithm.rewards.required()) <= {"team"}:  # others need role rewards
        check_advantage(SyntheticTeam(sampler, algorithm, team()))


def test_sides_are_stored_and_replayed() -> None:
    (episode, _) = sampled().episodes
    again = decode_episode(json.loads(json.dumps(encode_episode(episode, tokens=False))))
    assert again.outcomes == episode.outcomes
    replayed = asyncio.run(rerun(Duel(), ZeroSum(), list(SIDES), again))
    assert differences(again, replayed) == []
    assert f", red {episode.outcomes['red']:g}, blue {episode.outcomes['blue']:g}, success" in _score(replayed)
    again.outcomes["red"] += 1
    assert differences(again, replayed)[0].startswith("the score of each side is {'red': ")

    (plain, _) = sampled(tasks=One()).episodes
    assert "outcomes" not in encode_episode(plain, tokens=False)
