"""`python -m tests.benchmarks.sampling [--quick] [--json]`: how well samplers keep a server busy, and what they cost.

    schedule    virtual seconds of the real samplers against a simulated server, divided by the least that is possible:
                    max(longest chain of requests that wait for each other, all work / slots)
    overhead    processor time of the engine and the sampler for one act, without a model
    memory      of 10,000 live episodes, each paused at an act, in this process

The schedule is exact: it is the same on any machine, at any load. Overheads are the best and the median of some rounds.
Takes about a minute; `--quick` a few seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable, Coroutine
from typing import Any

import psutil

from marl_verl import plugins
from marl_verl.episode import Journal, Limits, Run
from marl_verl.options import build
from marl_verl.sampling import Independent, Sample, Sampler
from marl_verl.tasks.base import Task
from tests.benchmarks.simulated import (
    ACTION,
    AGENTS,
    TURNS,
    Sequence,
    Server,
    SimulatedRollouts,
    Together,
    in_virtual_time,
)

TASKS, SESSIONS = 32, 8
EPISODES = TASKS * SESSIONS
SLOTS = (32, 64, 128, 256)
ACTS = TURNS * len(AGENTS)


# schedule


async def side_by_side(sampler: Sampler, all_: list[SimulatedRollouts]) -> list[Sample]:
    """All tasks at once in one loop, as a rollout worker samples them."""
    return list(await asyncio.gather(*(sampler.sample(each) for each in all_)))


def independent(slots: int, seed: int, lockstep: bool) -> float:
    """Time of 256 episodes over the lower bound."""

    async def go() -> Server:
        server, barrier = Server(slots, seed), asyncio.Barrier(EPISODES) if lockstep else None
        all_ = [SimulatedRollouts(Sequence(), f"t{t}", SESSIONS, server, barrier) for t in range(TASKS)]
        samples = await side_by_side(Independent(), all_)
        assert sum(len(sample.episodes) for sample in samples) == EPISODES
        assert server.requests == EPISODES * ACTS
        return server

    server, seconds = in_virtual_time(go())
    return seconds / max(max(server.work.values()), server.total / slots)


def tree(name: str, slots: int, seed: int) -> tuple[float, int]:
    """(time of 32 trees over the lower bound, acts a tree); its longest chain is the time it takes by itself, with a
    slot for every request."""

    def run(slots_: int) -> tuple[Server, float]:
        async def go() -> Server:
            server = Server(slots_, seed)
            sampler = build(plugins.load().get("samplers", name), {}, "sampler")
            workflow, sessions = (Together(), 2) if name == "joint-tree" else (Sequence(), SESSIONS)
            all_ = [SimulatedRollouts(workflow, f"t{t}", sessions, server) for t in range(TASKS)]
            samples = await side_by_side(sampler, all_)
            assert all(sample.episodes and not sample.failures for sample in samples)
            return server

        return in_virtual_time(go())

    _, chain = run(10**6)
    server, seconds = run(slots)
    return seconds / max(chain, server.total / slots), server.requests // TASKS


def schedule(seeds: int, tree_seeds: int) -> dict[str, Any]:
    """Scheme -> slots -> ratios of all seeds."""
    found: dict[str, Any] = {"independent": {}, "lockstep": {}}
    for slots in SLOTS:
        for scheme in ("independent", "lockstep"):
            found[scheme][slots] = [independent(slots, seed, scheme == "lockstep") for seed in range(seeds)]
    for name in ("greedy-tree", "joint-tree"):
        if name in plugins.load().names("samplers"):
            made = {slots: [tree(name, slots, seed) for seed in range(tree_seeds)] for slots in SLOTS}
            found[f"{name}, {made[SLOTS[0]][0][1]} acts a tree"] = {
                slots: [ratio for ratio, _ in ratios] for slots, ratios in made.items()
            }
    return found


# overhead


def processor_seconds(work: Callable[[], Coroutine[Any, Any, None]]) -> float:
    """Of this process, while it runs; the garbage of what was before is none of it."""
    gc.collect()
    with asyncio.Runner() as runner:
        runner.get_loop()
        begun = time.process_time()
        runner.run(work())
        return time.process_time() - begun


async def sample_all(episodes: int, limits: Limits) -> None:
    all_ = [SimulatedRollouts(Sequence(), f"t{t}", SESSIONS, limits=limits) for t in range(episodes // SESSIONS)]
    samples = await side_by_side(Independent(), all_)
    assert sum(len(sample.episodes) for sample in samples) == episodes


async def drive_alone(journals: list[Journal]) -> None:
    """The engine without a sampler, one run after the other."""
    for _ in range(EPISODES):
        async with Run(Sequence(), Task("t", "a question"), AGENTS) as run:
            while (acts := await run.next()) is not None:
                for act in acts:
                    run.supply(act, ACTION)
        journals.append(run.journal)


async def replay_all(journals: list[Journal]) -> None:
    for journal in journals:
        async with Run(Sequence(), Task("t", "a question"), AGENTS, journal) as run:
            assert await run.next() is None


def overhead(rounds: int) -> dict[str, dict[str, float]]:
    """What -> best and median microseconds an act."""
    journals: list[Journal] = []
    asyncio.run(drive_alone(journals))
    watched = Limits(step_seconds=60.0, episode_seconds=3600.0)
    works: dict[str, tuple[Callable[[], Coroutine[Any, Any, None]], int]] = {
        "independent sampler, 256 episodes at once": (lambda: sample_all(256, Limits()), 256),
        "the same with the watchdog and a time limit": (lambda: sample_all(256, watched), 256),
        "independent sampler, 4096 episodes at once": (lambda: sample_all(4096, Limits()), 4096),
        "engine alone, live": (lambda: drive_alone([]), EPISODES),
        "engine alone, replayed": (lambda: replay_all(journals), EPISODES),
    }
    taken: dict[str, list[float]] = {what: [] for what in works}
    for _ in range(rounds):
        for what, (work, episodes) in works.items():
            taken[what].append(1e6 * processor_seconds(work) / (episodes * ACTS))
    return {what: {"best": min(all_), "median": statistics.median(all_)} for what, all_ in taken.items()}


# memory


async def live(episodes: int, acts: int) -> dict[str, float]:
    """Episodes paused after some acts: bytes each, as Python counts them and as the process grows; and once dropped."""
    process = psutil.Process()

    async def paused(number: int) -> Run:
        run = Run(Sequence(), Task(f"t{number}", "a question"), AGENTS)
        for _ in range(acts):
            for act in await run.next() or ():
                run.supply(act, ACTION)
        await run.next()
        return run

    async def hold(measure: Callable[[], int]) -> tuple[int, int]:
        gc.collect()
        before = measure()
        runs = [await paused(number) for number in range(episodes)]
        gc.collect()
        held = measure() - before
        assert len(asyncio.all_tasks()) == episodes + 1
        for run in runs:
            run.close()
        await asyncio.sleep(0)
        del runs, run
        await asyncio.sleep(0)
        gc.collect()
        assert len(asyncio.all_tasks()) == 1
        return held, measure() - before

    await paused(0)
    grown, _ = await hold(lambda: process.memory_info().rss)
    tracemalloc.start()
    counted, kept = await hold(lambda: tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    return {
        "episodes": episodes,
        "acts_before": acts,
        "bytes_each": counted / episodes,
        "rss_bytes_each": grown / episodes,
        "kept_bytes": kept,
    }


def memory(episodes: int) -> list[dict[str, float]]:
    """At the first act, and in the middle of an episode."""
    return [asyncio.run(live(episodes, acts)) for acts in (0, ACTS // 2)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer seeds, rounds and episodes")
    parser.add_argument("--json", action="store_true", help="the results as one line of JSON, and nothing else")
    options = parser.parse_args()
    quick = options.quick
    held = memory(1000 if quick else 10_000)  # first: a process that has grown already would show less
    results = {
        "schedule": schedule(2 if quick else 10, 1 if quick else 3),
        "overhead": overhead(2 if quick else 9),
        "memory": held,
    }
    print(json.dumps(results) if options.json else shown(results))


def shown(results: dict[str, Any]) -> str:
    """The results as tables."""
    lines = [
        "time over the lower bound: mean (least to most) over seeds",
        f"{'slots':<36}" + "".join(f"{s:>22}" for s in SLOTS),
    ]
    for scheme, by_slots in results["schedule"].items():
        cells = [f"{statistics.mean(r):.3f} ({min(r):.3f} to {max(r):.3f})" for r in by_slots.values()]
        lines.append(f"{scheme:<36}" + "".join(f"{cell:>22}" for cell in cells))
    lines += ["", "processor microseconds an act: best, median"]
    lines += [f"{what:<46}{found['best']:8.1f}{found['median']:8.1f}" for what, found in results["overhead"].items()]
    lines += ["", "live episodes, paused"]
    for found in results["memory"]:
        total = found["bytes_each"] * found["episodes"] / 2**20
        lines.append(
            f"{found['episodes']:,.0f} after {found['acts_before']:.0f} acts: {found['bytes_each'] / 1024:.1f} KiB each, "
            f"{total:.0f} MiB in all (the process grew by {found['rss_bytes_each'] / 1024:.1f} KiB each); "
            f"dropped: {found['kept_bytes'] / 1024:.0f} KiB kept"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
