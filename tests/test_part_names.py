"""Names and objects are accepted alike wherever a part is an argument."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from marl_verl import hookimpl, plugins
from marl_verl.algo.advantage import (
    AGENT,
    Advantage,
    Baseline,
    Discounted,
    FloatArray,
    Immediate,
    IntArray,
    LeaveOneOut,
    Population,
    Returns,
    RowTable,
)
from marl_verl.algo.algorithms import Algorithm
from marl_verl.algo.algorithms.gigpo import GroupInGroup
from marl_verl.algo.credit import C3, NoCredit
from marl_verl.algo.rewards import Mix, RewardMix
from marl_verl.config.parts import algorithm_named
from marl_verl.errors import MarlError
from marl_verl.plugins import Registry
from marl_verl.testing.rows import row

FIVE = Algorithm(sampler="independent", rewards="weights", credit="none", advantage="advantage", loss="ppo-clip")
TABLE = RowTable.from_rows([row("q", session, 0, 0, "a", team=float(session)) for session in range(3)])


def test_an_option_of_the_advantage_is_not_one_of_the_credit() -> None:
    given = {"credit": "step-groups", "returns": "discounted", "gamma": 0.5, "group": "agent", "eps": 0.25}
    found: Any = FIVE.with_options({**given, "credit_eps": 0.5})
    assert (found.advantage.returns.gamma, found.advantage.group, found.advantage.eps) == (0.5, AGENT, 0.25)
    assert (found.credit.gamma, found.credit.group, found.credit.eps) == (0.95, ("uid",), 0.5)


def test_a_new_part_takes_over_options_of_the_same_name_and_type_only() -> None:
    from marl_verl_magrpo.algorithm import JointAdvantage

    old = Algorithm(advantage=GroupInGroup(std="population", group="agent"))
    found: Any = old.with_options({"advantage": "joint"}, find=lambda kind, name: JointAdvantage).advantage
    assert (found.mode, found.group, found.std) == ("mean", AGENT, Population())  # not mean_norm, another `mode`


def test_an_algorithm_is_five_names() -> None:
    assert Algorithm("independent", Mix(), NoCredit(), Advantage(), "ppo-clip") == FIVE
    assert FIVE.compute(TABLE).advantage.tolist() == pytest.approx([-1, 0, 1], abs=1e-5)
    assert isinstance(Algorithm(advantage="group-in-group", credit="c3").advantage, GroupInGroup)
    assert isinstance(Algorithm(credit="c3").credit, C3)


def test_the_parts_of_an_advantage_are_names_or_objects() -> None:
    named = Advantage(
        baseline="leave-one-out", returns="discounted", std="population", group="agent", scale_group="batch"
    )
    assert named == Advantage(
        baseline=LeaveOneOut(), returns=Discounted(), std=Population(), group=AGENT, scale_group=()
    )
    assert pickle.loads(pickle.dumps(named)) == named
    assert Advantage().returns == Immediate()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"baseline": "leave-one-ou"}, r"unknown baseline 'leave-one-ou': did you mean 'leave-one-out'\?"),
        ({"std": "populatio"}, r"unknown scale 'populatio': did you mean 'population'\?"),
        ({"group": "sibling"}, r"unknown group 'sibling': did you mean 'siblings'\?"),
        ({"baseline": LeaveOneOut}, "'baseline' must be one of the baselines or a name, got <class"),
        ({"returns": LeaveOneOut()}, "'returns' must be one of the returns or a name"),
        ({"std": None}, "'std' must be one of the scales or a name, got None"),
    ],
)
def test_what_is_no_part_is_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(MarlError, match=message):
        Advantage(**options)


def test_a_sampler_and_a_loss_are_names() -> None:
    with pytest.raises(MarlError, match="'loss' must be a registered name, got 3"):
        Algorithm(loss=3)  # type: ignore[arg-type]
    with pytest.raises(MarlError, match="'credit' must be one of the credits or a name"):
        Algorithm(credit=Mix())  # type: ignore[arg-type]


# Names of plugins


@dataclass(frozen=True)
class Doubled(RewardMix):
    """r = factor * team."""

    factor: float = 2.0

    def compute(self, table: RowTable) -> FloatArray:
        return self.factor * table.component("team")


@dataclass(frozen=True)
class Squared(Returns):
    """R = r^2."""

    def compute(self, table: RowTable, reward: FloatArray) -> FloatArray:
        return np.square(reward)


@dataclass(frozen=True)
class First(Baseline):
    """b = the group's first return."""

    def compute(self, value: FloatArray, group: IntArray) -> FloatArray:
        return value[np.unique(group, return_index=True)[1]][group]


class Plugin:
    @hookimpl
    def marl_register(self, registry: Registry) -> None:
        registry.mix("doubled", Doubled)
        registry.returns("squared", Squared)
        part = Advantage(returns="squared", baseline=First(), norm_by_std=False, singleton="raw")
        registry.advantage("from-first", part)
        registry.algorithm("by-name", Algorithm(rewards="doubled", advantage="from-first"))
        registry.algorithm("in-part", Algorithm(rewards="doubled", advantage=part))
        registry.algorithm("misspelt", Algorithm(rewards="doubeld"))
        registry.algorithm("wrong-kind", Algorithm(rewards="squared"))


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    assembled = plugins.assemble({"mine": Plugin()})
    monkeypatch.setattr(plugins, "load", lambda: assembled)


@pytest.mark.parametrize("name", ["by-name", "in-part"])
def test_names_of_plugins_are_resolved_in_an_algorithm(name: str) -> None:
    algorithm = algorithm_named(name, {}, "options")
    assert algorithm.compute(TABLE).advantage.tolist() == [0.0, 4.0, 16.0]
    assert algorithm.options()["rewards"] == "doubled"
    assert algorithm.options()["returns"] == "squared"
    assert algorithm.options()["baseline"] == "first"
    assert algorithm_named(name, {"factor": 1.0, "baseline": "mean"}, "options").compute(TABLE).ret.tolist() == [
        0,
        1,
        4,
    ]
    assert algorithm_named(name, algorithm.options(), "options") == algorithm


def test_a_recipe_names_the_parts_of_plugins() -> None:
    algorithm = algorithm_named("grpo", {"rewards": "in-memory:doubled", "returns": "squared"}, "options")
    assert (algorithm.options()["rewards"], algorithm.options()["returns"]) == ("doubled", "squared")


def test_a_name_that_no_plugin_has_is_an_error_with_the_nearest() -> None:
    with pytest.raises(MarlError, match="unknown reward mix 'doubeld': did you mean 'doubled'"):
        algorithm_named("misspelt", {}, "options")
    with pytest.raises(MarlError, match="unknown reward mix 'squared'"):
        algorithm_named("wrong-kind", {}, "options")


def test_a_plugin_name_cannot_be_used_before_it_is_resolved() -> None:
    with pytest.raises(MarlError, match=r"'doubled' is not among the mixes of marl-verl \(weights\)"):
        Algorithm(rewards="doubled").compute(TABLE)
