"""Synthetic rows: those of the run's own sampler, on which an algorithm is tried before work starts."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from marl_verl_testing import check_algorithm

from marl_verl import plugins
from marl_verl.algo.advantage import (
    AGENT,
    Advantage,
    AdvantageResult,
    Baseline,
    Estimator,
    FloatArray,
    Returns,
    RowTable,
    Scale,
    group_ids,
)
from marl_verl.algo.algorithms import Algorithm, Metric
from marl_verl.algo.credit import TableCredit
from marl_verl.algo.rewards import RewardMix
from marl_verl.algo.sampling import SESSION, Independent, Sample, Sampler, State, attempt, expand, leaf_episode, root
from marl_verl.backend.protocol import Report
from marl_verl.config import fit
from marl_verl.config.fit import SyntheticTeam, check_advantage, check_fit
from marl_verl.errors import MarlError
from marl_verl.team import TeamConfig, read_team
from marl_verl.trainer.metrics import team_metrics
from tests.batches import SHIPPED, algorithm, row

AGENTS: dict[str, Any] = {"planner": {"policy": "one", "reward": "valid-answer"}, "worker": {"policy": "two"}}
JOINT = (("planner", "worker"),)


def team(agents: dict[str, Any] = AGENTS) -> TeamConfig:
    parts = {"task": {"name": "inventory"}, "workflow": {"name": "inventory"}, "algorithm": {"name": "grpo"}}
    return read_team({"agents": agents, "policies": {"one": {}, "two": {}}, **parts})


class Chains(Sampler):
    """Chains from one root: one act after the other, and no node of several agents."""

    branches: ClassVar[bool] = True
    incremental: ClassVar[bool] = True
    chains: int = 2

    async def sample(self, context: Any) -> Sample:
        start = await attempt(context, SESSION, root(context, SESSION))
        assert isinstance(start, State)
        found, index = Sample(), 0
        for chain in range(self.chains):
            state = start
            while state.acts:
                name, parent = f"{chain}.{index}", state.turn.node if state.turns else None
                state = await expand(
                    context, state, state.acts[0], SESSION, name, index=index, parent=parent, partial_value="zero"
                )
                index += 1
            found.episodes.append(leaf_episode(state))
        return found


def synthetic(name: str, sampler: Sampler | None = None, moves: Any = (), **options: Any) -> SyntheticTeam:
    method, known = algorithm(name, **options), plugins.load()
    return SyntheticTeam(sampler or known.get("samplers", method.sampler)(), method, team(), moves)


@pytest.mark.parametrize("moves", [(), JOINT])
def test_a_tree_whose_agents_act_one_after_the_other_goes_with_returns_that_sum_a_path(moves: Any) -> None:
    chains = synthetic("magrpo", Chains(), moves)
    check_fit(chains.sampler, chains.algorithm, chains.team)
    check_advantage(chains)


def test_different_rewards_of_one_joint_action_are_refused_before_the_start() -> None:
    check_advantage(synthetic("magrpo"))  # the agents act one after the other
    with pytest.raises(MarlError, match=r"algorithm 'grpo' does not fit the team: rows .* are one joint action"):
        check_advantage(synthetic("magrpo", moves=JOINT))
    with pytest.raises(MarlError, match="are one joint turn"):
        check_advantage(synthetic("magrpo-sessions"))


@pytest.mark.parametrize("name", [name for name in SHIPPED if name not in ("gigpo", "magrpo-sessions")])
def test_every_algorithm_is_tried_on_its_own_sampler(name: str) -> None:
    check_advantage(synthetic(name))


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (Sample, "it returned no turns"),
        (lambda: None, "`Broken.sample` must return a Sample, it returned None"),
        (lambda: {}["lost"], r"KeyError: 'lost' \(test_synthetic.py, line \d+\)"),
        (lambda: time.sleep(1e6), r"it does not end within 40 s: \(test_synthetic.py, line \d+\)"),
    ],
)
def test_a_sampler_that_fails_is_named(sample: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Sampler):
        async def sample(self, context: Any) -> Any:
            return sample()

    monkeypatch.setattr(fit, "SECONDS", 0.1)
    with pytest.raises(MarlError, match=f"sampler 'independent' fails on a synthetic task of the team: {message}"):
        check_advantage(synthetic("grpo", Broken()))


# Mistakes of part authors: the error names the part, what it returned, and what is right


ROWS = [row("q", n, 0, 0, "a", team=float(n)) for n in range(3)]
GIVEN: dict[str, Any] = {}  # what the parts below return


def given(base: type, name: str) -> Any:
    """A part that returns what GIVEN has, or what that returns."""
    compute = lambda self, *read: value(*read) if callable(value := GIVEN["value"]) else value  # noqa: E731
    methods = dict.fromkeys(("compute", "of_rows"), compute)
    return dataclass(frozen=True)(type(f"Given{name}", (base,), methods))()


PARTS = [
    Algorithm(rewards=given(RewardMix, "Mix")),
    Algorithm(credit=(given(TableCredit, "Credit"),)),
    Advantage(returns=given(Returns, "Returns")),
    Advantage(baseline=given(Baseline, "Baseline")),
    Advantage(std=given(Scale, "Scale")),
]


@pytest.mark.parametrize("part", PARTS, ids=("mix", "credit", "returns", "baseline", "scale"))
@pytest.mark.parametrize("value", [None, 0, np.ones(2), np.ones((3, 1)), {}])
def test_a_part_that_does_not_return_one_number_per_row(part: Any, value: Any) -> None:
    GIVEN["value"] = value
    with pytest.raises(MarlError, match=r"`Given\w+\.compute` of 'given-\w+' must return an array of [13] numbers"):
        check_algorithm(part, ROWS)


@pytest.mark.parametrize("part", PARTS)
def test_a_part_cannot_change_what_other_parts_read(part: Any) -> None:
    GIVEN["value"] = lambda *read: (read[-1].component("team") if isinstance(read[-1], RowTable) else read[-1]).sort()
    with pytest.raises(ValueError, match="read-only"):
        check_algorithm(part, ROWS)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("part", PARTS[3:], ids=("baseline", "scale"))
def test_a_baseline_or_scale_must_be_finite(part: Advantage, value: float) -> None:
    """A scale of NaN would count as 1."""
    GIVEN["value"] = [value] * 3 if part is PARTS[3] else [value]
    with pytest.raises(MarlError, match=r"the (scale|advantage) of row 'q_0_0' .* is (nan|-?inf): ('base|a num)"):
        Algorithm(advantage=part).compute(RowTable.from_rows(ROWS))


def result(scale: float = 1.0, n: int = 3) -> AdvantageResult:
    table = RowTable.from_rows(ROWS)
    with np.errstate(divide="ignore", invalid="ignore"):
        zero, group = np.zeros(n), group_ids(table, ("uid",))[:n]
        return AdvantageResult(zero, zero, zero, np.full(n, scale), group, np.arange(n), ("uid",))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda: result(scale=0.0), "the advantage of row 'q_0_0' .* is nan"),
        (lambda: result().weighted(-np.ones(3)), r"row 'q_0_0' has a weight of `GivenEstimator\.compute` .* not 0 or"),
        (lambda: np.ones(3), r"`GivenEstimator\.compute` .* must return an AdvantageResult, it returned array"),
        (lambda: result(n=2), r"'ret' of `GivenEstimator\.compute` .* an array of 3 numbers, got shape \(2,\)"),
    ],
)
def test_an_estimator_that_returns_something_else(value: Callable[[], Any], message: str) -> None:
    GIVEN["value"] = value()
    with pytest.raises(MarlError, match=message):
        check_algorithm(given(Estimator, "Estimator"), ROWS)


# `check_algorithm`: each violation is reported


BATCH = [
    row(uid, session, index, turn, agent, team=float(team))
    for uid, sessions in {"p": [(1, 0, 3), (0, 2, 1), (5, 1)], "q": [(2,), (0, 4, 4)]}.items()
    for session, rewards in enumerate(sessions)
    for index, (turn, agent, team) in enumerate(zip((0, 0, 1), "aba", rewards, strict=False))
]


@dataclass(frozen=True)
class Broken(Estimator):
    """A = r - mean of the task, and a mistake."""

    mistake: str = ""

    def compute(self, table: RowTable, reward: FloatArray) -> AdvantageResult:
        uid = table.uid.codes
        mean = np.bincount(uid, weights=reward)[uid] / np.bincount(uid)[uid]
        parts: dict[str, Any] = {"ret": reward, "reward": reward, "baseline": mean, "scale": np.ones(len(table))}
        parts |= {"group": uid, "sample": np.arange(len(table)), "group_by": ("uid",)}
        if self.mistake == "groups":
            parts["group_by"] = ("uid", "agent")
        if self.mistake == "batch":
            parts["baseline"] = np.full(len(table), reward.mean())
        return AdvantageResult(**parts)


@dataclass(frozen=True)
class FirstOfSession(Returns):
    """R = reward of the session's first turn: another group's reward if groups are turns."""

    def compute(self, table: RowTable, reward: FloatArray) -> FloatArray:
        first = {
            (u, s): r for u, s, i, r in zip(table.uid.codes, table.session, table.index, reward, strict=True) if not i
        }
        return np.array([first.get(key, 0.0) for key in zip(table.uid.codes, table.session, strict=True)])


def test_groups_are_those_of_their_columns() -> None:
    message = r"row p_0_0 is compared with rows p_0_0, .*; those that agree in \('uid', 'agent'\) are rows p_0_0, p_0_2"
    with pytest.raises(AssertionError, match=message):
        check_algorithm(Broken("groups"), BATCH)


def test_rows_outside_the_reach_must_not_matter() -> None:
    method = Advantage(returns=FirstOfSession(), group=("uid", "turn", "agent"))
    with pytest.raises(AssertionError, match=r"with rewards of rows outside its group changed to -7\.0"):
        check_algorithm(method, BATCH)
    check_algorithm(method, BATCH, reach="task")
    with pytest.raises(AssertionError, match="rows outside its task"):
        check_algorithm(Broken("batch"), BATCH, reach="task")
    check_algorithm(Broken("batch"), BATCH, reach="batch")


@pytest.mark.parametrize(
    ("value", "message"),
    [(None, "must return numbers by name"), ({"x": "a"}, "must return"), ({"train/success": 1}, "returns 'train")],
)
def test_a_metric_that_returns_something_else_or_the_name_of_another(value: Any, message: str) -> None:
    GIVEN["value"] = value
    metrics, table = (given(Metric, "Metric"),) * 2, RowTable.from_rows(ROWS)
    with pytest.raises(MarlError, match=f"`of_rows` of metric 'given-metric' {message}"):
        check_advantage(SyntheticTeam(Independent(), Algorithm(metrics=metrics), team()))
    for reports, method in (([], "rows"), ([Report("", "", metrics={"train/success": 1.0})], "sample")):
        with pytest.raises(MarlError, match=f"`of_{method}` of metric 'given-metric'"):
            team_metrics(table, Algorithm().compute(table), reports, metrics[:1])


def test_groups_have_several_rows_also_if_the_sampler_makes_one_episode() -> None:
    GIVEN["value"] = np.zeros(2)  # one number for each agent
    method = Algorithm(advantage=Advantage(group=AGENT, baseline=given(Baseline, "Baseline")))
    with pytest.raises(MarlError, match="must return an array of 4 numbers"):
        check_advantage(SyntheticTeam(Independent(episodes=1), method, team()))
