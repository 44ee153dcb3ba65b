"""Parts of an algorithm in config: short names, paths, nested options."""

import json
import pickle
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from annotated_types import Gt, Interval, Lt
from marl_verl_baselines import C3, Efficiency, StepGroups

from marl_verl.algo.advantage import Advantage, Baseline, FloatArray, IntArray, LeaveOneOut, Returns, RowTable
from marl_verl.algo.algorithms import Algorithm
from marl_verl.algo.rewards import Mix, RewardMix
from marl_verl.config.parts import algorithm_named
from marl_verl.errors import MarlError
from marl_verl.options import NonNegative, Options, Positive, build
from tests.sites import use_plugin


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


FIRST = Advantage(returns=Squared(), baseline=First(), norm_by_std=False, singleton="raw")
MINE = Algorithm(rewards=Doubled(), advantage=FIRST)


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    use_plugin(monkeypatch, lambda registry: registry.algorithm("mine", MINE))


def test_the_parts_of_the_algorithms_module_have_short_names_and_all_others_paths() -> None:
    path = f"{__name__}:Doubled"
    other: Any = algorithm_named("mine", {"rewards": "weights", "advantage": {"baseline": "leave-one-out"}}, "o")
    assert (other.rewards, other.advantage.baseline) == (Mix(), LeaveOneOut())
    assert algorithm_named("grpo", {"rewards": {"name": path, "factor": 3}}, "o").rewards == Doubled(3)
    assert algorithm_named("mine", {"rewards": "doubled"}, "o") == MINE
    with pytest.raises(MarlError, match=r"'o\.rewards' .*: unknown reward mix 'doubled'"):
        algorithm_named("grpo", {"rewards": "doubled"}, "o")
    for option in ({"credit": "replay-credit"}, {"metrics": "metric"}, {"advantage": {"returns": "_session-sum"}}):
        with pytest.raises(MarlError, match="unknown"):  # classes to derive from, and private ones
            algorithm_named("grpo", option, "o")
    with pytest.raises(MarlError, match=r"'o\.advantage\.returns': 'marl_verl.*:C3' is no returns"):
        algorithm_named("grpo", {"advantage": {"returns": "marl_verl_baselines:C3"}}, "o")


@pytest.mark.parametrize("value", ["first", First, Squared()], ids=["text", "class", "other kind"])
def test_an_option_that_is_no_part_is_named(value: Any) -> None:
    """Also where the class of a user has it."""

    @dataclass(frozen=True)
    class Own(Advantage):
        baseline: Baseline = value

    with pytest.raises(MarlError, match=r"'own\.baseline' must be Baseline, got"):
        Algorithm(advantage=Own())
    with pytest.raises(MarlError, match="'credit' must be a list of Credit, got"):
        Algorithm(credit=(value,))

    class Undecorated(Own):
        beta: float = 2.0

    with pytest.raises(MarlError, match="decorate class 'Undecorated' with @dataclass"):
        Algorithm(advantage=Undecorated())

    @dataclass(frozen=True)
    class Ignored(Doubled):
        factor = 3.0

    for use in (lambda: Algorithm(rewards=Ignored()), lambda: build(Ignored, {}, "o")):
        with pytest.raises(MarlError, match=r"annotate 'Ignored\.factor'"):
            use()

    @dataclass(frozen=True, slots=True)
    class Valid(Doubled):
        names: list[str] = field(default_factory=list)

    assert build(Valid, {}, "o") == Valid(2.0, [])


TWO = (Efficiency(), StepGroups(gamma=0.5))


@pytest.mark.parametrize(
    ("value", "credit"), [("c3", (C3(),)), (["efficiency", {"name": "step-groups", "gamma": 0.5}], TWO), ("none", ())]
)
def test_a_credit_or_a_list_of_them(value: Any, credit: tuple[Any, ...]) -> None:
    found = algorithm_named("grpo", {"credit": value}, "o")
    assert found.credit == credit
    assert pickle.loads(pickle.dumps(found)) == found
    assert algorithm_named("mine", json.loads(json.dumps(found.options())), "o") == found


# Options of a class: types, ranges and nested options. Messages of wrong ones are in `config_messages.txt`


@dataclass(frozen=True)
class Limit:
    seconds: Annotated[float, Gt(0)] = 1.0


class Search(Options):
    width: Positive = 4
    depth: NonNegative | None = None
    decay: Annotated[float, Interval(gt=0, le=1)] = 0.5
    share: Annotated[float, Lt(1)] = 0.0
    order: Literal["depth", "breadth"] | None = None
    seeds: Literal[-1] | Positive = -1
    limit: Limit | None = None


def test_values_within_their_ranges_are_taken_as_they_are() -> None:
    values: dict[str, Any] = {"width": 1, "depth": 0, "decay": 1, "order": "depth", "seeds": 3, "limit": {"seconds": 2}}
    assert build(Search, values, "o") == Search(**{**values, "limit": Limit(2)})
    assert build(Search, {"limit": None, "depth": None}, "o") == build(Search, None, "o") == Search()
