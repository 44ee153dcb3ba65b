"""Mistakes of part authors: the error names the part, what it returned, and what is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from marl_verl_testing import check_algorithm
from marl_verl_testing.workflows import talkers

from marl_verl.algo.advantage import (
    Advantage,
    AdvantageResult,
    Baseline,
    Discounted,
    Estimator,
    FloatArray,
    IntArray,
    Mean,
    Returns,
    RowTable,
    Scale,
    group_ids,
)
from marl_verl.algo.algorithms import Algorithm
from marl_verl.algo.credit import TableCredit
from marl_verl.algo.rewards import Mix, RewardMix
from marl_verl.episode import Team, Workflow
from marl_verl.errors import MarlError
from marl_verl.tasks.base import Task

ROWS = [
    {"uid": "q", "session": n, "index": 0, "turn": 0, "agent": "a", "rewards": {"team": float(n)}, "length": 3}
    for n in range(3)
]
GIVEN: dict[str, Any] = {}  # what the parts below return


@dataclass(frozen=True)
class GivenMix(RewardMix):
    def compute(self, table: RowTable) -> FloatArray:
        return GIVEN["value"]


@dataclass(frozen=True)
class GivenCredit(TableCredit):
    def compute(self, table: RowTable) -> FloatArray:
        return GIVEN["value"]


@dataclass(frozen=True)
class GivenReturns(Returns):
    def compute(self, table: RowTable, reward: FloatArray) -> FloatArray:
        return GIVEN["value"]


@dataclass(frozen=True)
class GivenBaseline(Baseline):
    def compute(self, value: FloatArray, group: IntArray) -> FloatArray:
        return GIVEN["value"]


@dataclass(frozen=True)
class GivenScale(Scale):
    def compute(self, value: FloatArray, group: IntArray) -> FloatArray:
        return GIVEN["value"]


@dataclass(frozen=True)
class GivenEstimator(Estimator):
    def compute(self, table: RowTable, reward: FloatArray) -> AdvantageResult:
        return GIVEN["value"]


@dataclass(frozen=True)
class ByName(Estimator):
    """A baseline by name in a field that takes an object."""

    baseline: Baseline = Mean()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Algorithm(rewards=GivenMix()),
        lambda: Algorithm(credit=(GivenCredit(),)),
        lambda: Advantage(returns=GivenReturns()),
        lambda: Advantage(baseline=GivenBaseline()),
        lambda: Advantage(std=GivenScale()),
    ],
)
@pytest.mark.parametrize("value", [None, 0, "mean", np.ones(2), np.ones((3, 1)), [[1.0], [2.0, 3.0]], {}])
def test_a_part_that_does_not_return_one_number_per_row(make: Callable[[], Any], value: Any) -> None:
    GIVEN["value"] = value
    part = make()
    name = next(
        type(each).__name__
        for each in (part, *vars(part).values(), *getattr(part, "credit", ()))
        if type(each).__name__.startswith("Given")
    )
    with pytest.raises(
        MarlError, match=rf"`{name}\.compute` of 'given-\w+' must return an array of [13] numbers, got "
    ):
        check_algorithm(part, ROWS)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("part", [Advantage(baseline=GivenBaseline()), Advantage(std=GivenScale())])
def test_a_baseline_or_scale_that_is_not_finite_is_named(part: Advantage, value: float) -> None:
    """A scale of NaN would count as 1."""
    GIVEN["value"] = [value] * 3 if isinstance(part.baseline, GivenBaseline) else [value]
    with pytest.raises(MarlError, match=rf"`Given\w+\.compute` of 'given-\w+' returned {value} as value 0"):
        Algorithm(advantage=part).compute(RowTable.from_rows(ROWS))


def test_a_list_of_numbers_is_an_array() -> None:
    GIVEN["value"] = [1, 2, 4]
    assert check_algorithm(Algorithm(rewards=GivenMix()), ROWS).reward.tolist() == [1.0, 2.0, 4.0]


def result(scale: float = 1.0, n: int = 3) -> AdvantageResult:
    table = RowTable.from_rows(ROWS)
    with np.errstate(divide="ignore", invalid="ignore"):
        zero, group = np.zeros(n), group_ids(table, ("uid",))[:n]
        return AdvantageResult.of(zero, zero, zero, np.full(n, scale), group, np.arange(n), ("uid",))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda: np.zeros(3), r"must return an AdvantageResult, got array\(.*AdvantageResult\.of\(ret, "),
        (lambda: None, "must return an AdvantageResult, got None"),
        (lambda: result(scale=0.0), "returns scale 0 for row 'q_0_0'. Return 1 where nothing is scaled"),
        (lambda: result(n=2), r"'advantage' of `GivenEstimator\.compute` .* an array of 3 numbers, got shape \(2,\)"),
    ],
)
def test_an_estimator_that_returns_something_else(value: Callable[[], Any], message: str) -> None:
    GIVEN["value"] = value()
    with pytest.raises(MarlError, match=r"`GivenEstimator\.compute` of 'given-estimator'") as error:
        check_algorithm(GivenEstimator(), ROWS)
    error.match(message)


class Relay(Workflow):
    async def run(self, task: Task, team: Team) -> Any:
        draft = await team["solver"].act(task.prompt)
        return (await team["verifier"].act(draft.text)).text


TWO = talkers(0, ("solver", "verifier"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: check_algorithm(ByName("mean"), ROWS),  # type: ignore[arg-type]
            "'by-name.baseline' must be Baseline, got 'mean'",
        ),
        (lambda: Algorithm(advantage=Advantage(returns=Discounted(gamma=2.0))), "'discounted.gamma' must be .* <= 1"),
        (lambda: Algorithm(columns=(lambda turn, episode: {},)), "must be functions of a module"),
        (lambda: Algorithm(metrics="joint-turns"), "'metrics' of an algorithm must be a tuple, got 'joint-turns'"),
        (lambda: Mix("team"), "'weights' must be a mapping or null, got 'team'"),
        (lambda: Mix(["team"]), "'weights' must be a mapping or null, got"),
    ],
)
def test_an_argument_of_the_wrong_kind(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(MarlError, match=message):
        call()
