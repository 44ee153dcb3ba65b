"""`python -m tests.benchmarks.sampling`: processor microseconds of one act without a model, the best and the median."""

import argparse
import asyncio
import gc
import statistics
import time
from collections.abc import Callable, Coroutine
from typing import Any

from marl_verl_testing import ScriptedContext, ScriptedPolicy

from marl_verl.algo.sampling import Candidate, Independent
from marl_verl.backend.verl.rollouts import collect_seldom
from marl_verl.episode import Act, Action, Journal, Run, Team, Workflow
from marl_verl.episode.errors import Limits
from marl_verl.tasks import Task

AGENTS = ("planner", "worker", "judge")
TURNS, SAMPLES, EPISODES = 4, 8, 256
ACTS = TURNS * len(AGENTS)  # of an episode
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


class Instant(ScriptedContext):
    """Gives the one action there is."""

    async def act(self, act: Act, session: int, candidate: Candidate = 0, agent: str | None = None) -> Action:
        return ACTION


def processor_seconds(work: Callable[[], Coroutine[Any, Any, None]]) -> float:
    """Of this process, while it runs; the garbage of what was before is none of it."""
    gc.collect()
    with asyncio.Runner() as runner:
        runner.get_loop()
        begun = time.process_time()
        runner.run(work())
        return time.process_time() - begun


async def sample_all(episodes: int, limits: Limits) -> None:
    tasks = [Task(f"t{number}", "a question") for number in range(episodes // SAMPLES)]
    contexts = [Instant(Sequence(), task, POLICY, limits=limits) for task in tasks]
    samples = await asyncio.gather(*map(Independent(SAMPLES).sample, contexts))
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    for name, taken in overhead(parser.parse_args().rounds).items():
        print(f"{name:<58}{min(taken):8.1f}{statistics.median(taken):8.1f}")


if __name__ == "__main__":
    main()
