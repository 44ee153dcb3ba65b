"""`python -m tests.benchmarks.sampling [--quick] [--json]`: server utilisation and CPU time of samplers.

    schedule    virtual seconds of the real samplers against a simulated server, divided by the least that is possible:
                    max(longest chain of requests that wait for each other, all work / slots)
    overhead    processor time of the engine and the sampler for one act, without a model
    memory      of 10,000 live episodes, each paused at an act, in one process

The schedule is exact: it is the same on any machine, at any load. Overheads are the best and the median of some rounds.
Takes about a minute; `--quick` a few seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import heapq
import json
import multiprocessing
import statistics
import time
import tracemalloc
from collections.abc import Callable, Coroutine
from typing import Any

import psutil

from marl_verl import plugins
from marl_verl.algo.sampling import Independent, Sample, Sampler
from marl_verl.backend.verl.rollout.worker import collect_seldom
from marl_verl.episode import Journal, Limits, Run
from marl_verl.options import build
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

TASKS, SAMPLES = 32, 8
EPISODES = TASKS * SAMPLES
SLOTS = (32, 64, 128, 256)
SIGMAS = (0.5, 1.0)
TREES = {"greedy-tree": (Sequence(), {"candidates": SAMPLES}), "joint-tree": (Together(), {"joint_actions": 2})}
ACTS = TURNS * len(AGENTS)


# schedule


async def side_by_side(sampler: Sampler, all_: list[SimulatedRollouts]) -> list[Sample]:
    """All tasks at once in one loop, as a rollout worker samples them."""
    return list(await asyncio.gather(*(sampler.sample(each) for each in all_)))


def independent(slots: int, seed: int, sigma: float, lockstep: bool) -> tuple[float, float]:
    """Time of 256 episodes over the lower bound; and over that of first-come list scheduling of the same requests."""

    async def go() -> Server:
        server, barrier = Server(slots, seed, sigma), asyncio.Barrier(EPISODES) if lockstep else None
        all_ = [SimulatedRollouts(Sequence(), f"t{t}", server, barrier) for t in range(TASKS)]
        samples = await side_by_side(Independent(SAMPLES), all_)
        assert sum(len(sample.episodes) for sample in samples) == EPISODES
        assert len(server.served) == EPISODES * ACTS
        return server

    server, seconds = in_virtual_time(go())
    chains: dict[tuple[str, int], list[float]] = {}
    for task, session, latency in server.served:
        chains.setdefault((task, session), []).append(latency)
    bound = max(max(map(sum, chains.values())), server.total / slots)
    return seconds / bound, seconds / first_come(list(chains.values()), slots)


def first_come(chains: list[list[float]], slots: int) -> float:
    """When all chains of requests are done that share some slots: each request asks for one when the request before it
    in its chain is done, and gets the one that is free first."""
    free = [0.0] * slots
    asked = [(0.0, number, 0) for number in range(len(chains))]  # (when, chain, request)
    end = 0.0
    while asked:
        when, number, place = heapq.heappop(asked)
        done = max(when, heapq.heappop(free)) + chains[number][place]
        heapq.heappush(free, done)
        end = max(end, done)
        if place + 1 < len(chains[number]):
            heapq.heappush(asked, (done, number, place + 1))
    return end


def trees(name: str, seed: int) -> dict[int, tuple[float, int]]:
    """Slots -> (time of 32 trees over the lower bound, acts a tree). Their longest chain is the time they take with a
    slot for every request."""

    def run(slots: int) -> tuple[Server, float]:
        async def go() -> Server:
            server = Server(slots, seed)
            workflow, options = TREES[name]
            sampler = build(plugins.load().get("samplers", name), options, "sampler")
            all_ = [SimulatedRollouts(workflow, f"t{t}", server) for t in range(TASKS)]
            samples = await side_by_side(sampler, all_)
            assert all(sample.episodes and not sample.failures for sample in samples)
            return server

        return in_virtual_time(go())

    _, chain = run(10**6)
    found = {}
    for slots in SLOTS:
        server, seconds = run(slots)
        found[slots] = seconds / max(chain, server.total / slots), len(server.served) // TASKS
    return found


def schedule(seeds: int, tree_seeds: int) -> dict[str, dict[int, list[float]]]:
    """Scheme -> slots -> ratios of all seeds."""
    found: dict[str, dict[int, list[float]]] = {}
    for sigma in SIGMAS:
        for scheme in ("independent", "lockstep"):
            both = {s: [independent(s, seed, sigma, scheme == "lockstep") for seed in range(seeds)] for s in SLOTS}
            found[f"{scheme}, sigma {sigma:g}"] = {s: [ratio for ratio, _ in ratios] for s, ratios in both.items()}
            if scheme == "independent":
                found[f"  over first-come, sigma {sigma:g}"] = {s: [r for _, r in ratios] for s, ratios in both.items()}
    for name in TREES:
        if name in plugins.load().names("samplers"):
            made = [trees(name, seed) for seed in range(tree_seeds)]
            acts = made[0][SLOTS[0]][1]
            found[f"{name}, {acts} acts a tree"] = {slots: [each[slots][0] for each in made] for slots in SLOTS}
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
    all_ = [SimulatedRollouts(Sequence(), f"t{t}", limits=limits) for t in range(episodes // SAMPLES)]
    samples = await side_by_side(Independent(SAMPLES), all_)
    assert sum(len(sample.episodes) for sample in samples) == episodes


async def drive_alone(journals: list[Journal]) -> None:
    """The engine without a sampler, one run after the other."""
    for _ in range(EPISODES):
        async with Run(Sequence(), Task("t", "a question"), AGENTS) as run:
            while (acts := await run.next()) is not None:
                for act in acts:
                    run.resolve(act, ACTION)
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
    seldom = "the same with the garbage collection of rollout workers"
    works[seldom] = works["independent sampler, 4096 episodes at once"]
    usual = gc.get_threshold()
    taken: dict[str, list[float]] = {what: [] for what in works}
    for _ in range(rounds):
        for what, (work, episodes) in works.items():
            if what == seldom:
                collect_seldom()
            taken[what].append(1e6 * processor_seconds(work) / (episodes * ACTS))
            gc.set_threshold(*usual)
            gc.unfreeze()
    return {what: {"best": min(all_), "median": statistics.median(all_)} for what, all_ in taken.items()}


# memory


async def live(episodes: int, acts: int) -> dict[str, float]:
    """Episodes paused after some acts: bytes each, as Python counts them and as the process grows; and once dropped."""
    process = psutil.Process()

    async def paused(number: int) -> Run:
        run = Run(Sequence(), Task(f"t{number}", "a question"), AGENTS)
        for _ in range(acts):
            for act in await run.next() or ():
                run.resolve(act, ACTION)
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

    (await paused(0)).close()
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


def paused_episodes(episodes: int, acts: int) -> dict[str, float]:
    """`live` in this process."""
    return asyncio.run(live(episodes, acts))


def memory(episodes: int) -> list[dict[str, float]]:
    """At the first act, and in the middle of an episode; each in a process of its own, which has not grown before."""
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        return pool.starmap(paused_episodes, [(episodes, 0), (episodes, ACTS // 2)], chunksize=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer seeds, rounds and episodes")
    parser.add_argument("--json", action="store_true", help="the results as one line of JSON, and nothing else")
    options = parser.parse_args()
    quick = options.quick
    results = {
        "schedule": schedule(2 if quick else 10, 1 if quick else 2),
        "overhead": overhead(2 if quick else 7),
        "memory": memory(1000 if quick else 10_000),
    }
    print(json.dumps(results) if options.json else shown(results))


def shown(results: dict[str, Any]) -> str:
    """The results as tables."""
    lines = ["time over the lower bound: mean (least to most) over seeds"]
    lines.append(f"{'slots':<36}" + "".join(f"{slots:>24}" for slots in SLOTS))
    for scheme, by_slots in results["schedule"].items():
        cells = [f"{statistics.mean(r):.3f} ({min(r):.3f} to {max(r):.3f})" for r in by_slots.values()]
        lines.append(f"{scheme:<36}" + "".join(f"{cell:>24}" for cell in cells))
    lines += ["", "processor microseconds an act: best, median"]
    lines += [f"{what:<58}{found['best']:8.1f}{found['median']:8.1f}" for what, found in results["overhead"].items()]
    lines += ["", "live episodes, paused"]
    for found in results["memory"]:
        each, grown = found["bytes_each"] / 1024, found["rss_bytes_each"] / 1024
        lines.append(
            f"{found['episodes']:,.0f} after {found['acts_before']:.0f} acts: {each:.1f} KiB each, "
            f"{each * found['episodes'] / 1024:.0f} MiB in all (the process grew by {grown:.1f} KiB each); "
            f"dropped: {found['kept_bytes'] / 1024:.0f} KiB kept"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
