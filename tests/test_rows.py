"""Turns as rows: tensors for those that a policy learns from, a tag for every one, and how they reach TransferQueue."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from marl_verl.algo.advantage import RowTable, agent_statistics
from marl_verl.backend.verl.rollout.rows import Row, row_fields, row_tag, turn_rows
from marl_verl.episode import Act, Action, Turn
from tests.batches import algorithm


def turn(session: int, index: int, policy: str, action: Action, team: float = 0.0) -> Turn:
    made = Turn(Act(f"{policy}-agent", "0", 0, index, ()), action, "u", session, policy)
    made.rewards["team"] = team
    return made


def sampled(*ids: int) -> Action:
    return Action("said", [7, 8, 9], list(ids), [-0.5] * len(ids), version=4)


TRAINED = {"learner"}
OUTSIDE = Action("said", tokens=11)


def episodes() -> list[Turn]:
    """Two sessions of a policy that learns, a frozen one and one outside, in key order."""
    return [
        turn(session, index, policy, action, team=float(session))
        for session in range(2)
        for index, (policy, action) in enumerate(
            [("learner", sampled(1, 2)), ("frozen", sampled(3, 4, 5)), ("outside", OUTSIDE)]
        )
    ]


def test_only_who_learns_has_tensors() -> None:
    rows = turn_rows(episodes(), step=5, learning={"learner"})
    assert [row.key for row in rows] == [f"u_{session}_{index}" for session in range(2) for index in range(3)]
    assert [row.fields is not None for row in rows] == [True, False, False] * 2
    first = rows[0].fields
    assert first is not None
    assert first["input_ids"].tolist() == [7, 8, 9, 1, 2]
    assert first["responses"].tolist() == [1, 2]
    assert first["rollout_log_probs"].tolist() == [-0.5, -0.5]
    assert first["response_mask"].dtype == torch.int64


def test_every_row_has_its_agent_and_length() -> None:
    tags = [row.tag for row in turn_rows(episodes(), step=5, learning={"learner"})][:3]
    assert [tag["policy"] for tag in tags] == ["learner", "frozen", "outside"]
    assert [tag["response_len"] for tag in tags] == [2, 3, 11]
    assert RowTable.of(episodes(), (), TRAINED).length.tolist() == [2, 3, 11] * 2
    assert [tag["prompt_len"] for tag in tags] == [3, 3, 0]
    assert [tag["seq_len"] for tag in tags] == [5, 6, 11]
    # of the policy's weights; an external endpoint reports none, and counts as the newest
    assert [tag["max_global_steps"] for tag in tags] == [4, 4, 4]


def test_a_row_of_a_frozen_policy_is_in_no_group() -> None:
    table = RowTable.of(episodes(), ("team",), TRAINED)
    result = algorithm("grpo").compute(table)
    # (1 - 1/2) / std of the learner's two rows; of all six rows it would be 0.913
    assert result.advantage.tolist() == pytest.approx([-0.7071058, 0, 0, 0.7071058, 0, 0], abs=1e-6)
    assert [len(result.members(row)) for row in range(6)] == [2, 1, 1, 2, 1, 1]
    assert set(agent_statistics(table, result)) == {
        "learner-agent",
        "frozen-agent",
        "outside-agent",
    }  # but in metrics, with their rewards
    assert result.reward.tolist() == [0, 0, 0, 1, 1, 1]
    assert RowTable.from_rows(table.to_rows()).untrained.tolist() == [False, True, True] * 2


def test_a_turn_of_a_frozen_policy_discounts_nothing() -> None:
    """A judge that acts more often than the solver, in more turns than the solver has."""
    rows = [
        {"uid": "t", "session": 0, "index": at, "turn": turn, "agent": agent, "rewards": {}, "team_reward": 1.0}
        | {"length": 1, "untrained": agent == "judge"}
        for at, (agent, turn) in enumerate([("judge", 0), ("solver", 0), ("judge", 1), ("solver", 1), ("judge", 2)])
    ]
    method = algorithm("magrpo-sessions", gamma=0.5)
    assert method.compute(RowTable.from_rows(rows)).ret[[1, 3]].tolist() == [0.5, 1.0]


# What reaches TransferQueue


class Store:
    """The calls that `collect` makes."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    async def async_kv_batch_put(self, **call: Any) -> None:
        self.calls.append(call)


def collected(monkeypatch: pytest.MonkeyPatch, rows: dict[str, list[Row]], uids: list[str]) -> list[dict[str, Any]]:
    """What `collect` puts for tasks with these rows; a task without an entry is one of a validation. A task with rows
    has the table of `episodes`."""
    from marl_verl.backend.verl.rollout import worker

    store = Store()
    monkeypatch.setattr(worker, "tq", store)
    made = object.__new__(worker._TeamRolloutWorker)

    async def go() -> None:
        made._rows, made._reports = rows, {}
        made._tables = {uid: RowTable.of(episodes(), (), TRAINED) for uid in rows if rows[uid]}
        expected = RowTable.of(episodes(), (), TRAINED).to_rows() if made._tables else None
        for uid in uids:
            made._report(uid).set_result(worker.Report(uid, uid))
        reports, table = await made.collect(uids)
        assert [report.uid for report in reports] == uids
        assert (None if table is None else table.to_rows()) == expected
        assert (made._rows, made._tables, made._reports) == ({}, {}, {})

    asyncio.run(go())
    return store.calls


@pytest.mark.slow
def test_every_row_is_put_once_and_before_its_task_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = turn_rows(episodes(), step=5, learning={"learner"})
    whole, tags = collected(monkeypatch, {"u": rows, "w": []}, ["u", "w"])
    assert whole["keys"] == ["u_0_0", "u_1_0"]
    assert [ids.tolist() for ids in whole["fields"]["input_ids"].unbind()] == [[7, 8, 9, 1, 2]] * 2
    assert tags["keys"] == ["u_0_1", "u_0_2", "u_1_1", "u_1_2", "u", "w"]
    assert "fields" not in tags
    by_key = dict(zip(whole["keys"] + tags["keys"], whole["tags"] + tags["tags"], strict=True))
    assert by_key["u"] == by_key["w"] == {"status": "finished"}
    assert {row.key: row.tag for row in rows} == {key: tag for key, tag in by_key.items() if "_" in key}


@pytest.mark.slow
def test_a_validation_puts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert collected(monkeypatch, {}, ["g0t00000"]) == []


def test_a_row_has_the_ids_of_its_turn_and_no_others() -> None:
    fields = row_fields(turn(0, 0, "learner", sampled(1, 2)))
    assert fields["prompts"].tolist() + fields["responses"].tolist() == fields["input_ids"].tolist()
    assert fields["position_ids"].tolist() == [0, 1, 2, 3, 4]
    assert row_tag(turn(0, 0, "learner", sampled(1, 2)), step=5)["seq_len"] == len(fields["input_ids"])


@pytest.mark.slow
def test_a_batch_is_split_by_policy_and_gets_back_the_padding_of_a_part() -> None:
    from transfer_queue import KVBatchMeta

    from marl_verl.backend.verl.batches import by_policy, in_order, with_padding

    keys = ["t_9_0", "t_10_0", "u_0_9", "u_0_10"]
    tags = [{"policy": "ab"[number % 2], "number": number} for number in range(4)]
    batch = in_order(KVBatchMeta(partition_id="train", keys=keys[::-1], tags=tags[::-1]), keys)
    assert (batch.keys, batch.tags) == (keys, tags)
    part = by_policy(batch)["b"]
    assert part.keys == ["t_10_0", "u_0_10"]
    padded = KVBatchMeta(partition_id="train", keys=[*part.keys, "pad"], tags=[*part.tags, {"is_padding": True}])
    whole = with_padding(batch, padded)
    assert whole.keys == [*keys, "pad"]
    assert whole.tags == [*tags, {"is_padding": True}]
