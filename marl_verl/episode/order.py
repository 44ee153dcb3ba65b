"""The order of a run's records: that of a replay, and without gaps."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from marl_verl.episode.journal import ActRecord, Record
from marl_verl.episode.turn import Act, Action


@dataclass(slots=True, eq=False)
class Wait:
    """An act that a run waits for: its position among the records, and the future that the workflow's task awaits."""

    act: Act
    position: int
    future: asyncio.Future[Action]


Waits = dict[tuple[str, str], Wait]
"""What a run stands at: (agent, slot) -> the wait."""


def numbered(records: list[Record | None]) -> list[Record | None]:
    """Without what was never answered, and with indices that have no gap."""
    kept: list[Record | None] = []
    index = 0
    for record in records:
        if isinstance(record, ActRecord):
            if record.act.index != index:
                record = ActRecord(replace(record.act, index=index), record.action)
            index += 1
        if record is not None:
            kept.append(record)
    return kept


def reordered(waits: Waits, records: list[Record | None], model: Waits) -> tuple[list[Record | None], Waits]:
    """The records of a replay, and the waits of the run that was replayed at their places among them.

    Args:
        waits: of the run; the same acts as in `model`.
        records, model: of its replay.
    """
    for key, wait in model.items():
        waits[key].act, waits[key].position = wait.act, wait.position
    return list(records), {key: waits[key] for key in model}
