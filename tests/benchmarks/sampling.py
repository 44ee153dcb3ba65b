"""`python -m tests.benchmarks.sampling [--quick]`: server utilisation and CPU time of samplers.

    schedule    virtual seconds of the real samplers against a simulated server, divided by the least that is possible:
                    max(longest chain of requests that wait for each other, all work / slots)
    overhead    processor time of the engine and the sampler for one act, without a model
    memory      of 10,000 live episodes, each paused at an act, in one process

The server has S slots, first come first served. The latency of a request is lognormal, median 1 s, and drawn from the
request alone (task, session, act, candidate), so that every scheme meets the same latencies. The clock is virtual: the
schedule is the same on any machine, at any load. Overheads are the best and the median of some rounds.
Takes about a minute; `--quick` a few seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import heapq
import math
import selectors
import statistics
import time
import tracemalloc
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, TypeVar

from marl_verl_testing import ScriptedContext, ScriptedPolicy

from marl_verl import plugins
from marl_verl.algo.sampling import Candidate, Independent, Sample, Sampler
from marl_verl.backend.verl.rollouts import collect_seldom
from marl_verl.episode import Act, Action, Journal, Run, Team, Workflow
from marl_verl.episode.errors import Limits
from marl_verl.options import build
from marl_verl.tasks.task import Task

T = TypeVar("T")
AGENTS = ("planner", "worker", "judge")
TURNS = 4
ACTION = Action("an action of some words", [1] * 16, [2] * 16, [-1.0] * 16, "stop", 0)
POLICY = ScriptedPolicy(dict.fromkeys(AGENTS, ACTION.text))


class Sequence(Workflow):
    """Three agents, one after the other, four times: 12 acts, each of which sees the one before."""

    async def run(self, task: Task, team: Team) -> str:
        text = task.prompt
        for turn in range(TURNS):
            for agent in team.agents:
                text = (await team[agent].act(f"{task.prompt}, turn {turn}: {text}")).text
        return text


class Together(Workflow):
    """Three agents at once, four times: 12 acts in 4 joint moves."""

    async def run(self, task: Task, team: Team) -> str:
        text = task.prompt
        for turn in range(TURNS):
            moves = await team.act(dict.fromkeys(team.agents, f"{task.prompt}, turn {turn}: {text}"))
            text = " ".join(action.text for action in moves.values())
            team.propose(text)
        return text


class _Jumping(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Advances the clock instead of sleeping."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise RuntimeError("all tasks wait, and no request is in flight")
        self.now += max(timeout, 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time: it jumps to the next timer as soon as nothing is left to do."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Virtual seconds."""
        return self._jumping.now


def in_virtual_time(work: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """Run it; its result, and the virtual seconds that it took."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work), runner.get_loop().time()


@dataclass
class Server:
    """S slots; what it has served.

    Attributes:
        sigma: of the logarithm of a latency, whose median is 1 s.
        served: (task, session, seconds) of every request, in order.
    """

    slots: int
    seed: int
    sigma: float = 1.0
    served: list[tuple[str, int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._free = asyncio.Semaphore(self.slots)  # hands its slots out in the order in which they were asked for

    def latency(self, *request: Any) -> float:
        """Seconds that a request takes, by its identity."""
        digest = hashlib.blake2b(repr((self.seed, *request)).encode(), digest_size=8).digest()
        return math.exp(self.sigma * NormalDist().inv_cdf((int.from_bytes(digest, "big") + 0.5) / 2**64))

    async def serve(self, task: str, session: int, *request: Any) -> None:
        """One request."""
        seconds = self.latency(task, session, *request)
        self.served.append((task, session, seconds))
        async with self._free:
            await asyncio.sleep(seconds)

    @property
    def total(self) -> float:
        """Seconds of all requests."""
        return sum(seconds for _, _, seconds in self.served)


class SimulatedRollouts(ScriptedContext):
    """Actions from a server; without one at once.

    Args:
        barrier: where all wait for all after each act: the lockstep of samplers that step their episodes
            together.
    """

    def __init__(
        self,
        workflow: Workflow,
        task: str,
        server: Server | None = None,
        barrier: asyncio.Barrier | None = None,
        limits: Limits = Limits(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__(workflow, Task(task, "a question"), POLICY, limits=limits)
        self._server, self._barrier = server, barrier

    async def act(self, act: Act, session: int, candidate: Candidate = 0, agent: str | None = None) -> Action:
        """The one action there is, after its latency."""
        if self._server is not None:
            await self._server.serve(self.task.id, session, *act.key, candidate)
        if self._barrier is not None:
            await self._barrier.wait()
        return ACTION


TASKS, SAMPLES = 32, 8
EPISODES = TASKS * SAMPLES
SLOTS = (32, 64, 128, 256)
SIGMAS = (0.5, 1.0)
TREES = {"greedy-tree": (Sequence(), {"candidates": SAMPLES}), "joint-tree": (Together(), {"joint_actions": 2})}
ACTS = TURNS * len(AGENTS)


async def side_by_side(sampler: Sampler, contexts: list[SimulatedRollouts]) -> list[Sample]:
    """All tasks at once in one loop, as a rollout worker samples them."""
    return list(await asyncio.gather(*(sampler.sample(context) for context in contexts)))


def independent(slots: int, seed: int, sigma: float, lockstep: bool) -> tuple[float, float]:
    """Time of 256 episodes over the lower bound; and over that of first-come list scheduling of the same requests."""

    async def go() -> Server:
        server, barrier = Server(slots, seed, sigma), asyncio.Barrier(EPISODES) if lockstep else None
        contexts = [SimulatedRollouts(Sequence(), f"t{t}", server, barrier) for t in range(TASKS)]
        samples = await side_by_side(Independent(SAMPLES), contexts)
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
            contexts = [SimulatedRollouts(workflow, f"t{t}", server) for t in range(TASKS)]
            samples = await side_by_side(sampler, contexts)
            assert all(sample.episodes and not sample.failures for sample in samples)
            return server

        return in_virtual_time(go())

    _, chain = run(10**6)
    ratios = {}
    for slots in SLOTS:
        server, seconds = run(slots)
        ratios[slots] = seconds / max(chain, server.total / slots), len(server.served) // TASKS
    return ratios


def schedule(seeds: int, tree_seeds: int) -> dict[str, dict[int, list[float]]]:
    """Scheme -> slots -> ratios of all seeds."""
    ratios_of: dict[str, dict[int, list[float]]] = {}
    for sigma in SIGMAS:
        for scheme in ("independent", "lockstep"):
            both = {s: [independent(s, seed, sigma, scheme == "lockstep") for seed in range(seeds)] for s in SLOTS}
            ratios_of[f"{scheme}, sigma {sigma:g}"] = {s: [ratio for ratio, _ in ratios] for s, ratios in both.items()}
            if scheme == "independent":
                ratios_of[f"  over first-come, sigma {sigma:g}"] = {
                    s: [r for _, r in ratios] for s, ratios in both.items()
                }
    for name in TREES:
        if name in plugins.load().names("samplers"):
            made = [trees(name, seed) for seed in range(tree_seeds)]
            acts = made[0][SLOTS[0]][1]
            ratios_of[f"{name}, {acts} acts a tree"] = {slots: [tree[slots][0] for tree in made] for slots in SLOTS}
    return ratios_of


def processor_seconds(work: Callable[[], Coroutine[Any, Any, None]]) -> float:
    """Of this process, while it runs; the garbage of what was before is none of it."""
    gc.collect()
    with asyncio.Runner() as runner:
        runner.get_loop()
        begun = time.process_time()
        runner.run(work())
        return time.process_time() - begun


async def sample_all(episodes: int, limits: Limits) -> None:
    contexts = [SimulatedRollouts(Sequence(), f"t{t}", limits=limits) for t in range(episodes // SAMPLES)]
    samples = await side_by_side(Independent(SAMPLES), contexts)
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


def overhead(rounds: int) -> dict[str, list[float]]:
    """Name -> microseconds an act, of each round."""
    journals: list[Journal] = []
    asyncio.run(drive_alone(journals))
    limited = Limits(episode_seconds=3600.0)
    works: dict[str, tuple[Callable[[], Coroutine[Any, Any, None]], int]] = {
        "independent sampler, 256 episodes at once": (lambda: sample_all(256, Limits()), 256),
        "the same with a time limit": (lambda: sample_all(256, limited), 256),
        "independent sampler, 4096 episodes at once": (lambda: sample_all(4096, Limits()), 4096),
        "engine alone, live": (lambda: drive_alone([]), EPISODES),
        "engine alone, replayed": (lambda: replay_all(journals), EPISODES),
    }
    seldom = "the same with the garbage collection of rollout workers"
    works[seldom] = works["independent sampler, 4096 episodes at once"]
    usual = gc.get_threshold()
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, (work, episodes) in works.items():
            if name == seldom:
                collect_seldom()
            taken[name].append(1e6 * processor_seconds(work) / (episodes * ACTS))
            gc.set_threshold(*usual)
            gc.unfreeze()
    return taken


async def paused_bytes(episodes: int, acts: int) -> tuple[float, int]:
    """Episodes paused after some acts: (bytes of each, bytes that are kept after their deletion)."""

    async def paused(number: int) -> Run:
        run = Run(Sequence(), Task(f"t{number}", "a question"), AGENTS)
        for _ in range(acts):
            for act in await run.next() or ():
                run.resolve(act, ACTION)
        await run.next()
        return run

    (await paused(0)).close()
    gc.collect()
    tracemalloc.start()
    runs = [await paused(number) for number in range(episodes)]
    gc.collect()
    held = tracemalloc.get_traced_memory()[0]
    assert len(asyncio.all_tasks()) == episodes + 1
    for run in runs:
        run.close()
    await asyncio.sleep(0)
    del runs, run
    await asyncio.sleep(0)
    gc.collect()
    assert len(asyncio.all_tasks()) == 1
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return held / episodes, kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer seeds, rounds and episodes")
    options = parser.parse_args()
    quick = options.quick
    print("time over the lower bound: mean (least to most) over seeds")
    print(f"{'slots':<36}" + "".join(f"{slots:>24}" for slots in SLOTS))
    for scheme, by_slots in schedule(2 if quick else 10, 1 if quick else 2).items():
        cells = [f"{statistics.mean(r):.3f} ({min(r):.3f} to {max(r):.3f})" for r in by_slots.values()]
        print(f"{scheme:<36}" + "".join(f"{cell:>24}" for cell in cells))
    print("\nprocessor microseconds an act: best, median")
    for name, taken in overhead(2 if quick else 7).items():
        print(f"{name:<58}{min(taken):8.1f}{statistics.median(taken):8.1f}")
    print("\nlive episodes, paused")
    episodes = 1000 if quick else 10_000
    for acts in (0, ACTS // 2):
        size, kept = asyncio.run(paused_bytes(episodes, acts))
        print(f"{episodes:,} after {acts} acts: {size / 1024:.1f} KiB each; deleted: {kept / 1024:.0f} KiB kept")


if __name__ == "__main__":
    main()
