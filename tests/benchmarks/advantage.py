"""`python -m tests.benchmarks.advantage`: advantages of large batches, side by side with verl's own GRPO estimator.

Rows of 16 agents in groups of 8, reward components as each algorithm needs them, a tree of 8 nodes a task for MARS2.
verl gets the same rows, its groups by the same columns, and their mixed rewards on the last token. The two take turns
in one process, and the median of the rounds is reported; memory is the peak of what one `compute` allocates, and of the
table itself. Takes about two minutes.
"""

import argparse
import pickle
import statistics
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from marl_verl.algo.advantage import RowTable
from marl_verl.algo.advantage.columns import Labels
from marl_verl.algo.advantage.rows import TableRow
from marl_verl.algo.algorithms import Algorithm
from marl_verl.config.parts import algorithm_named

AGENTS, GROUP = 16, 8
NAMES = ("dr-mas", "at-grpo", "mars2", "sharp")
TASK = AGENTS * GROUP  # rows
TOKENS = 8  # of a response, in verl's tensors


def batch(name: str, n: int, seed: int = 0) -> RowTable:
    """About n rows: 8 sessions of 16 agents a task; for mars2 a tree of 8 nodes a task, each by one of 16 agents."""
    rng = np.random.default_rng(seed)
    per_task = GROUP if name == "mars2" else TASK
    tasks = n // per_task
    n = tasks * per_task
    row = np.arange(n)
    task, place = row // per_task, row % per_task
    none = Labels(np.full(n, -1), ())
    node = parent = none
    if name == "mars2":
        nodes = tuple(f"n{i}" for i in range(GROUP))
        above = np.floor(rng.random(n) * (place + 1)).astype(np.int64) - 1  # an earlier node, or -1 for the root
        node, parent = Labels(place, nodes), Labels(above, nodes)
        agent, session, index = rng.integers(0, AGENTS, n), np.zeros(n, dtype=np.int64), place
    else:
        agent, session, index = place % AGENTS, place // AGENTS, place % AGENTS
    rewards = {"team": rng.integers(0, 2, n).astype(float), "role": rng.random(n)}
    names = tuple(f"agent{i:02d}" for i in range(AGENTS))
    if name == "sharp":
        rewards = {"broadcast": rewards["team"], "mc": rng.normal(size=n), "tool": rewards["role"]}
        names = (*names[:-1], "planner")
    present = {component: np.ones(n, dtype=np.bool_) for component in rewards}
    if name == "sharp":
        present["mc"] = agent != AGENTS - 1
    labels = {"uid": Labels(task, tuple(f"s1t{i:07d}" for i in range(tasks))), "policy": none, "obs": none}
    labels |= {"agent": Labels(agent.astype(np.int64), names), "slot": Labels(np.zeros(n, dtype=np.int64), ("0",))}
    numbers = {"session": session, "index": index.astype(np.int64), "turn": np.zeros(n, dtype=np.int64)}
    numbers |= {"node": node, "parent": parent, "length": rng.integers(1, 500, n)}
    numbers |= {name: np.full(n, np.nan) for name in ("team_reward", "values")}
    numbers |= {name: np.zeros(n, dtype=np.bool_) for name in ("invalid", "untrained")}
    return RowTable(**labels, **numbers, rewards=rewards, present=present)


def verls(table: RowTable, algorithm: Algorithm) -> Callable[[], Any]:
    """verl's estimator on the same rows and groups; its input is prepared beforehand and not timed."""
    import torch
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    result, scores = algorithm.compute(table), torch.zeros(len(table), TOKENS)
    scores[:, -1] = torch.tensor(result.reward, dtype=torch.float32)
    mask = torch.ones(len(table), TOKENS)
    index = np.array([f"g{group}" for group in result.group], dtype=object)
    return lambda: compute_grpo_outcome_advantage(token_level_rewards=scores, response_mask=mask, index=index)


def seconds(work: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    begun = clock()
    work()
    return clock() - begun


def compare(name: str, n: int, rounds: int) -> tuple[float, float]:
    """Median seconds of (marl-verl, verl), which alternate."""
    table, algorithm = batch(name, n), algorithm_named(name, {}, "options")
    stock = verls(table, algorithm)
    pairs = [(seconds(lambda: algorithm.compute(table)), seconds(stock)) for _ in range(rounds)]
    ours, verl = zip(*pairs, strict=True)
    return statistics.median(ours), statistics.median(verl)


def scaling(name: str, n: int, rounds: int) -> str:
    """Median milliseconds and bytes per row at one size."""
    table, algorithm = batch(name, n), algorithm_named(name, {}, "options")
    median = statistics.median(seconds(lambda: algorithm.compute(table)) for _ in range(rounds))
    tracemalloc.start()
    batch(name, n)
    algorithm.compute(table)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return f"{1000 * median:6.1f} ({peak / len(table):.0f})"


def table_milliseconds(rounds: int) -> float:
    """CPU time to make the row table of 100,000 rows that arrive as bytes from 8 workers."""
    records = [
        TableRow(
            **{"uid": f"s1t{i // TASK:05d}", "agent": f"agent{i % 16}", "policy": f"p{i % 2}", "slot": str(i % 3)},
            **{"session": i // 16 % 8, "index": i % 16, "turn": i % 3, "length": 5 + i % 50},
            **{"rewards": {"role": float(i % 2)}, "team_reward": float(i % 3), "obs": f"{i // 4:016x}"},
        )
        for i in range(100_000)
    ]
    sent = [pickle.dumps(records[worker::8]) for worker in range(8)]

    def work() -> RowTable:
        return RowTable.of_records([record for share in sent for record in pickle.loads(share)])

    return 1000 * statistics.median(seconds(work, time.process_time) for _ in range(rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="of the comparison with verl")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    print(f"{options.rows} rows, {AGENTS} agents, groups of {GROUP}, {options.rounds} rounds in turns")
    for name in NAMES:
        ours, verl = compare(name, options.rows, options.rounds)
        print(f"  {name:<8} {1000 * ours:7.1f} ms   verl's GRPO {1000 * verl:7.0f} ms   {verl / ours:5.0f} times")
    print("growth: milliseconds (bytes a row, table included)")
    for name in NAMES:
        shown = [f"{n:,}: {scaling(name, n, options.rounds)}" for n in (10_000, 100_000, 1_000_000)]
        print(f"  {name:<8} " + "   ".join(shown))
    print(f"the row table of 100,000 rows from 8 workers: {table_milliseconds(options.rounds):.0f} ms of CPU time")


if __name__ == "__main__":
    main()
