"""`python -m tests.benchmarks.table`: CPU seconds to make the row table of 100,000 rows.

Rollout workers make a table of each task's rows while others are sampled, and join their own tables; the trainer joins
those of the workers, which arrive as bytes. Medians of seven rounds.
"""

from __future__ import annotations

import pickle
import statistics
import time
from collections.abc import Callable
from typing import Any

from marl_verl.algo.advantage import RowTable
from marl_verl.algo.advantage.concat import concat

WORKERS, TASK = 8, 128  # rows of a task


def rows(n: int) -> list[dict[str, Any]]:
    """n rows, 16 of each episode and 8 episodes of each task."""
    return [
        {
            **{"uid": f"s1t{i // TASK:05d}", "agent": f"agent{i % 16}", "policy": f"p{i % 2}", "slot": str(i % 3)},
            **{"node": None, "parent": None, "session": i // 16 % 8, "index": i % 16, "turn": i % 3},
            **{"length": 5 + i % 50, "rewards": {"role": float(i % 2)}, "team_reward": float(i % 3)},
            **{"obs": f"{i // 4:016x}", "invalid": False, "columns": {}},
        }
        for i in range(n)
    ]


def median_seconds(work: Callable[[], Any]) -> float:
    """CPU seconds of a call."""
    seconds = []
    for _ in range(7):
        begun = time.process_time()
        work()
        seconds.append(time.process_time() - begun)
    return statistics.median(seconds)


if __name__ == "__main__":
    given = rows(100_000)
    tasks = [given[start : start + TASK] for start in range(0, len(given), TASK)]
    tables = [RowTable.from_rows(task) for task in tasks]
    shares = [concat(tables[number::WORKERS]) for number in range(WORKERS)]
    sent = [pickle.dumps(table) for table in shares]
    found = {
        "the trainer, from the tables of 8 workers": median_seconds(lambda: concat([*map(pickle.loads, sent)])),
        "the trainer, if it made the table of all rows": median_seconds(lambda: RowTable.from_rows(given)),
        "all workers, tables of their tasks": median_seconds(lambda: [RowTable.from_rows(task) for task in tasks]),
        "all workers, joining them": median_seconds(lambda: [concat(tables[w::WORKERS]) for w in range(WORKERS)]),
    }
    for what, seconds in found.items():
        print(f"{what:<50}{1000 * seconds:6.0f} ms for {len(given):,} rows")
