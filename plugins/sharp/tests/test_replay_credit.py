"""Credit by replay: leave-one-out, Shapley, SHARP with it, and the kit that checks such credits."""

import asyncio
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_sharp.counterfactual import (
    Counterfactual,
    MaskingCredit,
    SampledShapley,
    coalitions,
    masked_value,
    shapley,
)
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_credit, shown
from marl_verl_testing.workflows import TASK, Hashed, Programmed, talkers, workflows

from marl_verl.algo.credit import ReplayCredit, with_credit
from marl_verl.algo.sampling import AttemptFailed, Independent, Sample, SamplingContext
from marl_verl.episode import Act, Action, Episode, Team, Workflow
from marl_verl.tasks import Task, TaskSet
from tests.loops import completed

Game = Mapping[frozenset[str], float]


def sampled(context: ScriptedContext, episodes: int = 1) -> Sample:
    sample = asyncio.run(Independent(episodes).sample(context))
    context.asked.clear()
    context.given.clear()
    return sample


def credited(credit: ReplayCredit, context: ScriptedContext) -> tuple[Episode, int]:
    """The rollouts' one episode with credit, and the tokens that this took."""
    (episode,) = sampled(context).episodes
    return episode, completed(credit.assign(context, episode))


def by_agent(episode: Episode, component: str = "credit") -> dict[str, float]:
    """Agent -> its credit, the same on all its turns."""
    found: dict[str, set[float]] = {}
    for turn in episode.turns:
        if component in turn.rewards:
            found.setdefault(turn.agent, set()).add(turn.rewards[component])
    assert all(len(values) == 1 for values in found.values())
    return {agent: value for agent, (value,) in found.items()}


class Fan(Workflow):
    """A plan, a joint action of three workers, and a report on their results."""

    async def run(self, task: Task, team: Team) -> dict[str, str]:
        plan = await team["planner"].act(task.prompt)
        names = ("worker1", "worker2", "worker3")
        work = await asyncio.gather(*(team[name].act(f"{plan.text}, {name}") for name in names))
        found = {name: action.text for name, action in zip(names, work, strict=True)}
        return {**found, "report": (await team["planner"].act(f"Found: {json.dumps(found)}")).text}


class OnlyTwo(TaskSet):
    """Worker 2's result adds 0.75, and 0.25 more if the report contains it."""

    def score(self, task: Task, answer: Any) -> float:
        return 0.75 * (answer["worker2"] == "gold") + 0.25 * ("gold" in answer["report"])


RESULTS = {"worker1": "stone", "worker2": "gold", "worker3": "sand"}
FAN = ScriptedPolicy({"planner": lambda act: "gold!" if "gold" in shown(act) else "plan", **RESULTS})


@given(workflow=workflows(), seed=st.integers(0, 99), data=st.data())
@settings(deadline=None, max_examples=25)
def test_delta_is_the_score_less_that_of_the_masked_run(workflow: Programmed, seed: int, data: st.DataObject) -> None:
    mode: Any = data.draw(st.sampled_from(["regenerate", "rescore", "full"]))
    unit: Any = data.draw(st.sampled_from(["agent", "act"]))
    credit = Counterfactual(component="mc", mode=mode, unit=unit, without=("critic",))
    context = ScriptedContext(workflow, TASK, talkers(seed), tasks=Hashed(), seed=seed)
    episode, tokens = credited(credit, context)
    assert tokens == sum(len(action.response_ids) for action in context.given)
    assert {candidate for _, _, candidate in context.asked} <= {
        f"without {who}" for turn in episode.turns for who in (turn.agent, ":".join(turn.key))
    }
    for turn in episode.turns:
        if turn.role == "critic":
            assert "mc" not in turn.rewards
            continue
        who = frozenset({turn.agent if credit.unit == "agent" else turn.key})
        value, _ = asyncio.run(masked_value(context, episode, who, credit.mode, credit.placeholder))
        assert turn.rewards["mc"] == episode.score - value


class Speak(Workflow):
    """All agents act jointly; the answer lists the agents that gave a text."""

    async def run(self, task: Task, team: Team) -> list[str]:
        actions = await team.act(dict.fromkeys(team.agents, task.prompt))
        return [agent for agent in team.agents if actions[agent].text == "here"]


class Played(TaskSet):
    """Scores an answer with a game's value of the listed coalition; records the coalitions."""

    def __init__(self, value: Callable[[frozenset[str]], float]) -> None:
        self.value, self.asked = value, []  # type: ignore[var-annotated]

    def score(self, task: Task, answer: Any) -> float:
        self.asked.append(frozenset(answer))
        return self.value(frozenset(answer))


def play(
    players: list[str], value: Callable[[frozenset[str]], float], credit: MaskingCredit | None = None, seed: int = 0
) -> tuple[dict[str, float], list[frozenset[str]]]:
    """(the credit of each player, coalitions that were replayed for it)."""
    tasks, policy = Played(value), ScriptedPolicy(dict.fromkeys(players, "here"))
    episode, _ = credited(credit or SampledShapley(), ScriptedContext(Speak(), TASK, policy, tasks=tasks, seed=seed))
    return by_agent(episode), tasks.asked[1:]  # the first is the episode itself


@st.composite
def games(draw: st.DrawFn, most: int = 4) -> tuple[list[str], Game]:
    players = [f"p{i}" for i in range(draw(st.integers(1, most)))]
    return players, {c: float(draw(st.integers(-10, 10))) for c in coalitions(players)}


@given(games(most=5), st.integers(1, 9), st.integers(0, 9))
@settings(deadline=None, max_examples=20)
def test_sampled_shapley_is_efficient_without_repeats(game: tuple[list[str], Game], orders: int, seed: int) -> None:
    players, value = game
    shares, replayed = play(players, value.__getitem__, SampledShapley(exact_up_to=0, permutations=orders), seed)
    assert sum(shares.values()) == pytest.approx(value[frozenset(players)] - value[frozenset()], abs=1e-9)
    assert len(set(replayed)) == len(replayed) <= orders * (len(players) - 1) + 1
    assert frozenset(players) not in replayed
    assert play(players, value.__getitem__, SampledShapley(exact_up_to=0, permutations=orders), seed)[0] == shares


def test_sampled_shapley_converges() -> None:
    players = [f"p{i}" for i in range(5)]
    value = {
        c: float(len(c) ** 2 + 7 * ("p0" in c and "p1" in c) - 5 * ("p2" in c and len(c) == 2))
        for c in coalitions(players)
    }
    exact = shapley(players, value)

    def error(orders: int) -> float:
        errors = []
        for seed in range(4):
            found, _ = play(players, value.__getitem__, SampledShapley(exact_up_to=4, permutations=orders), seed)
            errors.append(math.sqrt(sum((found[p] - exact[p]) ** 2 for p in players) / len(players)))
        return sum(errors) / len(errors)

    few, many = error(10), error(640)
    assert many < 0.3
    assert many < few / 4  # by the square root of 64, were it exact


def test_truncation_saves_coalitions() -> None:
    players = [f"p{i}" for i in range(8)]

    def saturated(coalition: frozenset[str]) -> float:
        return min(len(coalition), 3) / 3

    whole, all_of_them = play(players, saturated, SampledShapley(permutations=5))
    shares, replayed = play(players, saturated, SampledShapley(permutations=5, truncation=0.1))
    assert shares == pytest.approx(whole)  # nothing was left to gain
    assert max(map(len, replayed)) == 3
    assert max(map(len, all_of_them)) == 7
    assert len(replayed) < len(all_of_them)
    # a tolerance above what is left: the last player gets nothing, and up to that much is assigned to no player
    shares, replayed = play(players, saturated, SampledShapley(permutations=5, truncation=0.5))
    assert max(map(len, replayed)) == 2
    assert sum(shares.values()) == pytest.approx(2 / 3)
    # the empty coalition already has the value of all players
    shares, replayed = play(players, lambda c: 1.0, SampledShapley(permutations=5, truncation=0.1))
    assert (set(shares.values()), replayed) == ({0.0}, [frozenset()])


def test_players_are_those_who_acted_and_are_not_left_out() -> None:
    class TwoSpeak(Workflow):
        async def run(self, task: Task, team: Team) -> list[str]:
            return [name for name in ("a", "b") if (await team[name].act(task.prompt)).text == "here"]

    tasks = Played(lambda coalition: float(len(coalition)))
    policy = ScriptedPolicy(dict.fromkeys(("a", "b", "c"), "here"))
    for credit, wanted, replays in (
        (SampledShapley(), {"a": 1.0, "b": 1.0}, 3),
        (SampledShapley(without=("a",)), {"b": 1.0}, 1),
        (SampledShapley(without=("a", "b")), {}, 0),
        (Counterfactual(), {"a": 1.0, "b": 1.0}, 2),
        (Counterfactual(without=("a",)), {"b": 1.0}, 1),
    ):
        tasks.asked.clear()
        episode, _ = credited(credit, ScriptedContext(TwoSpeak(), TASK, policy, tasks=tasks))
        assert by_agent(episode) == wanted
        assert len(tasks.asked) - 1 == replays


class Flaky(ScriptedContext):
    """In session 1, replays without worker 2 or 3 find no server; 3 fails sooner."""

    async def act(self, act: Act, session: int, candidate: Any = 0, agent: str | None = None) -> Action:
        if session == 1 and candidate in ("without worker2", "without worker3"):
            for _ in range(5 if candidate == "without worker2" else 0):
                await asyncio.sleep(0)
            raise ConnectionError("no server")
        return await super().act(act, session, candidate, agent)


@pytest.mark.parametrize(
    ("credit", "who"), [(Counterfactual(), "worker2"), (SampledShapley(without=("planner",)), "worker3")]
)
def test_an_episode_that_cannot_be_credited_is_a_failure_of_its_own(credit: ReplayCredit, who: str) -> None:
    context = Flaky(Fan(), TASK, FAN, tasks=OnlyTwo())
    sample = sampled(context, 3)
    completed(with_credit(credit, context, sample))
    assert [episode.session for episode in sample.episodes] == [0, 2]
    assert all(by_agent(episode)["worker1"] == 0.0 for episode in sample.episodes)
    (failure,) = sample.failures
    assert (failure.session, failure.reason) == (1, "policy-error")
    replayed = f"replay with {who} masked: workflow 'Fan' on task 'q1'"
    assert failure.detail.startswith(f"{replayed}, act planner:1: ConnectionError: no server (test_replay_credit.py, ")
    assert 'raise ConnectionError("no server")' in failure.trace
    assert {turn.session for turn in sample.turns} == {0, 2}
    mine = [action for (session, _, _), action in zip(context.asked, context.given, strict=True) if session != 1]
    assert sample.extra_tokens == {"credit": sum(len(action.response_ids) for action in mine)}


SHIPPED = [
    Counterfactual(),
    Counterfactual(mode="full", unit="act", without=("critic",)),
    Counterfactual(mode="rescore"),
    SampledShapley(component="phi", without=("planner",)),
    SampledShapley(exact_up_to=0, permutations=3, truncation=0.25),
]


@given(workflow=workflows(), seed=st.integers(0, 99), credit=st.sampled_from(SHIPPED))
@settings(deadline=None, max_examples=8)
def test_the_credits_pass_the_check_on_any_workflow(workflow: Programmed, seed: int, credit: ReplayCredit) -> None:
    episodes = check_credit(credit, workflow, TASK, talkers(seed), Hashed(), seed=seed, orders=2)
    assert [episode.session for episode in episodes] == [0, 1]


@dataclass(frozen=True)
class Broken(Counterfactual):
    """Breaks one promise."""

    how: str = ""

    async def assign(self, context: SamplingContext, episode: Episode) -> int:
        if self.how == "ignores failures":
            try:
                return await super().assign(context, episode)
            except AttemptFailed:
                pass
            for turn in episode.turns:
                turn.rewards["credit"] = 0.0
            return 0
        tokens = await super().assign(context, episode)
        turn = episode.turns[0]
        if self.how == "tokens":
            return tokens + 1
        elif self.how == "no player":
            turn.rewards["credit"] = 0.0
        elif self.how == "another reward":
            turn.rewards["role"] = 1.0
        elif self.how == "score":
            episode.score += 1.0
        return tokens


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("tokens", r"reports \d+ tokens, and \d+ were sampled"),
        ("no player", r"row 0 of session 0 \(planner:0, .*\) has 'credit' 0.0; players are"),
        ("another reward", r"changed row 0 of session 0 \(planner:0"),
        ("score", "changed the episode's journal, answer or score"),
        ("ignores failures", "assigns credit although its policy requests fail"),
    ],
)
def test_the_kit_finds_what_is_wrong(how: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_credit(Broken(how=how, without=("planner",)), Fan(), TASK, FAN, OnlyTwo())
