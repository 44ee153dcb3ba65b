"""Turns as rows: tensors for those that a policy learns from, a tag for every one, and how they reach the store."""

import pytest
import torch
from marl_verl_local.session import MemoryStore

from marl_verl.algo.advantage import RowTable
from marl_verl.algo.advantage.rows import TableRow
from marl_verl.backend.protocol import Report
from marl_verl.backend.rollout.rows import row_fields, row_tag
from marl_verl.backend.rollout.worker import RolloutWorker
from marl_verl.episode import Act, Action, Turn
from marl_verl.errors import MarlError
from marl_verl.trainer.data import in_key_order
from marl_verl.trainer.metrics import agent_statistics
from tests.batches import algorithm


def turn(session: int, index: int, policy: str, action: Action, team: float = 0.0) -> Turn:
    made = Turn(Act(f"{policy}-agent", "0", 0, index, ()), action, "u", session, policy)
    made.rewards["team"] = team
    return made


def sampled(*ids: int) -> Action:
    return Action("said", [7, 8, 9], list(ids), [-0.5] * len(ids), version=4)


TRAINED = {"learner"}


def episodes() -> list[Turn]:
    """Two sessions of a policy that learns, a frozen one and one outside, in key order."""
    return [
        turn(session, index, policy, action, team=float(session))
        for session in range(2)
        for index, (policy, action) in enumerate(
            [("learner", sampled(1, 2)), ("frozen", sampled(3, 4, 5)), ("outside", Action("said", tokens=11))]
        )
    ]


def test_the_tensors_of_a_row() -> None:
    first = row_fields(episodes()[0])
    assert (first["input_ids"].tolist(), first["responses"].tolist()) == ([7, 8, 9, 1, 2], [1, 2])
    assert (first["rollout_log_probs"].tolist(), first["response_mask"].dtype) == ([-0.5, -0.5], torch.int64)


def test_a_row_of_a_frozen_policy_is_in_no_group() -> None:
    table = RowTable.of(episodes(), ("team",), TRAINED)
    result = algorithm("grpo").compute(table)
    # (1 - 1/2) / std of the learner's two rows; of all six rows it would be 0.913
    assert result.advantage.tolist() == pytest.approx([-0.7071058, 0, 0, 0.7071058, 0, 0], abs=1e-6)
    assert [len(result.members(row)) for row in range(6)] == [2, 1, 1, 2, 1, 1]
    assert len(agent_statistics(table, result)) == 3  # but in metrics, with their rewards
    assert result.reward.tolist() == [0, 0, 0, 1, 1, 1]
    assert RowTable.from_rows(table.to_rows()).untrained.tolist() == [False, True, True] * 2


def test_a_turn_of_a_frozen_policy_discounts_nothing() -> None:
    """A judge that acts more often than the solver, in more turns than the solver has."""
    rows = [
        {"uid": "t", "session": 0, "index": at, "turn": turn, "agent": agent, "rewards": {}, "team_reward": 1.0}
        | {"length": 1, "untrained": agent == "judge"}
        for at, (agent, turn) in enumerate([("judge", 0), ("solver", 0), ("judge", 1), ("solver", 1), ("judge", 2)])
    ]
    assert algorithm("magrpo-sessions", gamma=0.5).compute(RowTable.from_rows(rows)).ret[[1, 3]].tolist() == [0.5, 1.0]


def test_rows_that_are_learnt_from_are_stored_and_all_are_returned() -> None:
    """Task "v" is one of a validation, or has failed."""
    worker = object.__new__(RolloutWorker)
    worker.store = store = MemoryStore()
    rows = [TableRow.of(turn, TRAINED, row_tag(turn, 5)) for turn in episodes()]
    fields = {turn.row: row_fields(turn) for turn in episodes() if turn.policy in TRAINED}
    reports = worker.stored([(Report("u", "u", rows=rows), fields), (Report("v", "v"), {})])
    assert [(report.uid, report.rows) for report in reports] == [("u", rows), ("v", [])]
    batch, table = in_key_order(reports, ())
    assert batch.keys == table.keys() == [turn.row for turn in episodes()]
    assert [tag["response_len"] for tag in batch.tags] == [2, 3, 11] * 2
    stored = [(key, row["input_ids"].tolist()) for key, row in store.rows.items()]
    assert stored == [("u_0_0", [7, 8, 9, 1, 2]), ("u_1_0", [7, 8, 9, 1, 2])]
    assert worker.stored([(reports[1], {})]) == reports[1:]


ROW = {"uid": "u", "session": 0, "index": 0, "turn": 0, "agent": "a", "rewards": {}, "length": 1}


def test_a_row_is_in_a_table_once() -> None:
    with pytest.raises(MarlError, match="two rows have the key 'u_0_0'"):
        RowTable.from_rows([ROW, ROW])
