"""`python -m tests.benchmarks.table`: CPU seconds to build the row table of 100,000 rows from their tags."""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

from marl_verl.advantage import RowTable


def tags(n: int) -> list[dict[str, Any]]:
    """Tags of n rows as a rollout worker sends them: no two of them share a text."""
    rows = [
        {
            **{"status": "success", "prompt_len": 10, "response_len": 5, "seq_len": 15, "global_steps": 1},
            **{"uid": f"s1t{i // 128:05d}", "agent": f"agent{i % 16}", "policy": f"p{i % 2}", "slot": str(i % 3)},
            **{"node": None, "parent": None, "session": i // 16 % 8, "index": i % 16, "turn": i % 3},
            **{"length": 5 + i % 50, "rewards": {"role": float(i % 2)}, "team_reward": float(i % 3)},
            **{"obs": f"{i // 4:016x}", "invalid": False, "columns": {}},
        }
        for i in range(n)
    ]
    return [json.loads(json.dumps(row)) for row in rows]


if __name__ == "__main__":
    given, seconds = tags(100_000), []
    for _ in range(7):
        begun = time.process_time()
        RowTable.from_tags(given)
        seconds.append(time.process_time() - begun)
    print(f"{statistics.median(seconds):.2f} s of CPU for {len(given):,} rows")
