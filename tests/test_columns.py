"""Computed columns, weights and advantages per token: from the turn to the row, the update and `explain`."""

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from marl_verl_inspect.explained import ExplainedRows
from marl_verl_local.session import MemoryStore
from marl_verl_testing import ScriptedPolicy, check_algorithm, check_sampler
from marl_verl_testing.algorithm import row_of as row

from marl_verl.algo.advantage import Advantage, AdvantageResult, FloatArray, RowTable
from marl_verl.algo.algorithms import Algorithm
from marl_verl.algo.algorithms.algorithm import step_document
from marl_verl.algo.credit import TableCredit
from marl_verl.algo.sampling import Independent, Sample
from marl_verl.algo.sampling.sampler import add_columns
from marl_verl.backend.learning.batches import put_advantages
from marl_verl.backend.protocol import Rows
from marl_verl.backend.rollout.rows import row_tag
from marl_verl.config.parts import columns_of
from marl_verl.episode import Turn
from marl_verl.episode.workflow import Single
from marl_verl.errors import MarlError
from marl_verl.plugins import Registry
from marl_verl.tasks import Task
from tests.sites import use_plugin


def nll(turn: Turn, episode: Any) -> dict[str, Any]:
    return {"nll": -float(np.mean(turn.action.log_probs)), "token-nll": [-value for value in turn.action.log_probs]}


@dataclass(frozen=True)
class Weighted(Advantage):
    """A' = nll * A."""

    name = "weighted"

    def compute(self, table: RowTable, reward: FloatArray) -> AdvantageResult:
        return super().compute(table, reward).weighted(table.column("nll"))


@dataclass(frozen=True)
class PerToken(Advantage):
    """A_t = A * nll_t."""

    name = "per-token"

    def compute(self, table: RowTable, reward: FloatArray) -> AdvantageResult:
        found = super().compute(table, reward)
        tokens = table.token_column("token-nll")
        return found.with_tokens([a * each for a, each in zip(found.advantage, tokens, strict=True)])


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Any:
    def register(registry: Registry) -> None:
        registry.algorithm("weighted", Algorithm(advantage=Weighted(), columns=(nll,)))
        registry.algorithm("per-token", Algorithm(advantage=PerToken(), columns=(nll,)))

    return use_plugin(monkeypatch, register)


def sampled() -> Sample:
    policy = ScriptedPolicy({"solver": lambda act, session, candidate: "ab"[: session + 1]})
    sample = check_sampler(Independent(episodes=2), Single(), Task("q", "say a", {}), policy)
    for turn in sample.turns:
        count = 2 + turn.session
        ids, values = [*range(count)], [-0.5 * (turn.session + 1)] * (count - 1) + [-0.25]
        turn.action = replace(turn.action, response_ids=ids, log_probs=values)
        turn.team_reward = float(turn.session)
    return sample


def rows(sample: Sample) -> list[dict[str, Any]]:
    return [row(turn) for turn in sample.turns]


def test_columns_go_from_turns_to_the_table_and_back(known: Any) -> None:
    sample = sampled()
    add_columns(columns_of(known.get("algorithms", "weighted")), sample)
    table = RowTable.from_rows(json.loads(json.dumps(rows(sample))))
    assert table.column("nll").tolist() == [0.375, 0.75]
    assert [values.tolist() for values in table.token_column("token-nll")] == [[0.5, 0.25], [1.0, 1.0, 0.25]]
    assert RowTable.from_rows(table.to_rows()).to_rows() == table.to_rows()
    assert table.take(np.array([1])).column("nll").tolist() == [0.75]
    with pytest.raises(MarlError, match="unknown column 'nl': did you mean 'nll'"):
        table.column("nl")
    with pytest.raises(MarlError, match="unknown column 'nll'"):
        RowTable.from_rows([{**each, "columns": {}} for each in rows(sample)]).column("nll")


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ({"nll": float("nan")}, "nan is no finite number"),
        ({"nll": [0.5]}, "a list with one per response token"),
        ({"nll": [0.5, None]}, "is no finite number"),
        (0.5, "has no attribute 'items'"),
    ],
)
def test_what_is_no_number_is_an_error_with_the_plugin(returned: Any, message: str) -> None:
    with pytest.raises(MarlError, match="column function 'bad' of mine 1, for turn 0 of agent 'solver', .*" + message):
        add_columns({"'bad' of mine 1": lambda turn, episode: returned}, sampled())
    with pytest.raises(MarlError, match="must not be a lambda or local"):
        columns_of(Algorithm(columns=(lambda turn, episode: returned,)))


def test_a_weight_multiplies_the_advantage_and_is_shown(known: Any) -> None:
    sample = sampled()
    add_columns({"nll": nll}, sample)
    plain = Algorithm().compute(RowTable.from_rows(rows(sample)))
    found = check_algorithm(known.get("algorithms", "weighted"), rows(sample))
    assert found.advantage.tolist() == [0.375 * plain.advantage[0], 0.75 * plain.advantage[1]]
    table = RowTable.from_rows(rows(sample))
    document = json.loads(json.dumps(step_document("weighted", known.get("algorithms", "weighted"), table, found, 1)))
    explained = ExplainedRows(document)
    assert explained.difference is None
    assert explained[1]["weight"] == 0.75
    assert explained[1]["columns"]["nll"] == 0.75
    text = explained.text(row=explained[1]["key"])
    assert "column: nll" in text
    assert "advantage = weight * (return - baseline) / scale = 0.75 * (1 - 0.5)" in text


def test_tokens_have_advantages_of_their_own(known: Any) -> None:
    sample = sampled()
    add_columns({"nll": nll}, sample)
    method = known.get("algorithms", "per-token")
    found = check_algorithm(method, rows(sample))
    a = found.advantage[1]
    assert found.of_tokens(1, 3).tolist() == [a, a, 0.25 * a]
    assert found.weighted(np.array([1.0, 0.5])).of_tokens(1, 3).tolist() == [0.5 * a, 0.5 * a, 0.125 * a]
    document = json.loads(json.dumps(step_document("per-token", method, RowTable.from_rows(rows(sample)), found, 1)))
    explained = ExplainedRows(document)
    assert explained.difference is None
    assert explained[1]["tokens"] == [a, a, 0.25 * a]
    text = explained.text(row=explained[1]["key"])
    assert "advantages of the tokens, which the update uses: 0.176776 to 0.707106, mean" in text
    document["tokens"][1][2] = 0.0
    assert "1 of 2 advantages are not what training used" in (ExplainedRows(document).difference or "")

    store, keys = MemoryStore(), ["q_0_0", "q_1_0"]
    put_advantages(store, Rows(keys, [{**row_tag(turn, 1), "policy": "p"} for turn in sample.turns]), found, {"p"})
    assert len(store.rows["q_0_0"]["advantages"]) == 2
    assert store.rows["q_1_0"]["advantages"].tolist() == pytest.approx([a, a, 0.25 * a])


@dataclass(frozen=True)
class First(TableCredit):
    """a = factor."""

    name = "first-credit"
    component = "a"
    factor: float = 2.0

    def compute(self, table: RowTable) -> FloatArray:
        return np.full(len(table), self.factor)


@dataclass(frozen=True)
class Second(TableCredit):
    """b = 3 a: it sees the first one's component."""

    name = "second-credit"
    component = "b"

    def compute(self, table: RowTable) -> FloatArray:
        return 3.0 * table.component("a")


def test_several_credits_are_applied_in_order_and_once() -> None:
    two = Algorithm(credit=(First(), Second()))
    table = RowTable.from_rows([{**each, "rewards": {}} for each in rows(sampled())])
    once = two.credited(table)
    assert [once.rewards[name].tolist() for name in "ab"] == [[2.0, 2.0], [6.0, 6.0]]
    assert two.credited(once).to_rows() == once.to_rows()
    changed = two.with_options({"credit": [{"name": "first-credit", "factor": 5.0}, "second-credit"]})
    assert changed.credited(table).rewards["b"].tolist() == [15.0, 15.0]
    assert changed.with_options(changed.options()) == changed
    with pytest.raises(MarlError, match="unknown reward component 'a'"):
        two.with_options({"credit": ["second-credit", "first-credit"]}).credited(table)
