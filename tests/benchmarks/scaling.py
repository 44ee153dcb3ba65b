"""`python -m tests.benchmarks.scaling [--episodes 4096]`: what bounds a step of a team on many servers.

The rollout workers, their samplers and engine, TransferQueue, verl's replay buffer, the row table and the advantages
are the real ones. The servers are simulated: 64 of them for 8 policies, 256 slots each, on a clock that jumps. Their
latencies are drawn from measured ones (latencies.txt: quantiles of what `latencies.py` writes, by their median), with a
median of 4 s. Each episode is 8 acts, one of each policy; each row has 128 and 64 tokens. Training workers, and the
processor time of requests to servers, are not part of it. Seconds are processor seconds of each process, so that other
work on the machine matters little:

    servers           virtual seconds of the sampling: no processor of this run would be any faster
    rollout workers   each of them has its share of the tasks
    TransferQueue     its controller and its storage unit, which are single processes
    driver            from the end of sampling to the written advantages

TransferQueue's controller and storage unit are processes of their own here, without Ray. The last column extrapolates
in proportion to the rows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import transfer_queue as tq
from omegaconf import OmegaConf
from transfer_queue import interface

from marl_verl import plugins
from marl_verl.algo.advantage.concat import concat
from marl_verl.algo.sampling import Independent
from marl_verl.algo.sampling.context import TaskContext
from marl_verl.backend.verl.batches import in_order, put_advantages
from marl_verl.backend.verl.rollout.context import WorkerContext
from marl_verl.backend.verl.rollout.worker import SamplerSet, _TeamRolloutWorker, collect_seldom
from marl_verl.config.parts import algorithm_named
from marl_verl.episode import Action, Limits, Team, Workflow
from marl_verl.tasks.base import Task, TaskSet
from marl_verl.team import AgentConfig
from marl_verl.trainer.team_trainer import TeamReplayBuffer
from tests.benchmarks.simulated import Server, in_virtual_time

POLICIES = tuple(f"policy{number}" for number in range(8))
SERVERS, SLOTS, GROUP, PROMPT, RESPONSE, MEDIAN = 64, 256, 8, 128, 64, 4.0


QUANTILES = [float(line) for line in Path(__file__).with_name("latencies.txt").read_text().split()]
"""Of the seconds of an act, divided by their median."""

PIPES: list[Any] = []  # to the processes of TransferQueue, which end with them


class Relay(Workflow):
    """Every agent acts once, in turn."""

    async def run(self, task: Task, team: Team) -> str:
        text = task.prompt
        for agent in team.agents:
            text = (await team[agent].act(f"{task.prompt}: {text}")).text
        return text


class Any_(TaskSet):
    """Half of the answers are right."""

    def score(self, task: Task, answer: Any) -> float:
        return float(len(answer) % 2)


class Measured(Server):
    """Servers with measured latencies, median 1 s."""

    def quantile(self, share: float) -> float:
        return float(np.interp(share, np.linspace(0, 1, len(QUANTILES)), QUANTILES))


class Client:
    """The client of a policy: a queue for all slots of its servers, and an action of fixed length."""

    sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}

    def __init__(self, name: str, slots: int) -> None:
        self.name, self.server, self.sent = name, Measured(slots, seed=1), 0

    def too_long(self, messages: Any, tools: Any) -> None:
        """Never."""

    async def answer(self, messages: Any, sampling: Any, request_id: str, *_: Any) -> Action:
        """After the server's latency."""
        self.sent += 1
        await self.server.serve(self.name, self.sent)
        text = "yes" if self.sent % 3 else "no"
        return Action(text, [1] * PROMPT, [2] * RESPONSE, [-1.0] * RESPONSE, "stop", 0)


def rollout_worker(workers: int) -> Any:
    """A rollout worker without its start: with simulated servers, of which it has its share."""
    worker = object.__new__(_TeamRolloutWorker)
    agents = {name: AgentConfig(name=name, policy=name) for name in POLICIES}
    algorithm = algorithm_named("grpo", {}, "options")
    context = TaskContext(Relay(), Any_(), agents, {}, algorithm.rewards, Limits())
    clients = {name: Client(name, SERVERS * SLOTS // len(POLICIES) // workers) for name in POLICIES}
    worker.parts = WorkerContext(context, clients, 0, False, frozenset(POLICIES))
    worker.samplers = SamplerSet(Independent(GROUP), Independent(GROUP), (), (), {}, algorithm.components(agents))
    worker.config = OmegaConf.create({"marl": {"run": {"journal_tokens": False}}})
    worker.learning, worker.joint, worker.observers = set(POLICIES), None, plugins.load().hook
    worker._reports, worker._rows, worker._tables, worker._gates = {}, {}, {}, {}
    worker._streams, worker._logged = False, set()
    return worker


async def sample(worker: Any, uids: Sequence[str]) -> None:
    """All tasks at once, as a worker samples a batch."""
    where = {"validate": False, "step": 1}
    prompts = [{"uid": uid, "task": json.dumps({"id": uid, "prompt": "a question"}), "keep": False} for uid in uids]
    await asyncio.gather(*(worker._run_prompt(prompt, {}, where) for prompt in prompts))


def controller() -> Any:
    """TransferQueue's controller, in this process."""
    from transfer_queue.controller import TransferQueueController

    return TransferQueueController.__ray_metadata__.modified_class()


def storage() -> Any:
    """A storage unit of TransferQueue, in this process."""
    from transfer_queue.storage.simple_storage import SimpleStorageUnit

    return SimpleStorageUnit.__ray_metadata__.modified_class({})


def serve(make: Callable[[], Any], pipe: Any) -> None:
    """Keep a part of TransferQueue until the other end of the pipe is closed."""
    made = make()
    pipe.send(made.get_zmq_server_info())
    pipe.poll(None)


def start(make: Callable[[], Any]) -> tuple[Any, psutil.Process]:
    """(address of a part of TransferQueue in a new process, the process)."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(make, theirs), daemon=True)
    process.start()
    PIPES.append(ours)
    return ours.recv(), psutil.Process(process.pid)


class Clock:
    """Processor seconds of this process and of TransferQueue's, by what this process does."""

    def __init__(self, others: dict[str, psutil.Process]) -> None:
        self.others, self.seconds = others, dict[str, float]()

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Add the processor seconds of the context."""
        before = self._now()
        yield
        for name, now in self._now().items():
            key = what if name == "own" else f"TransferQueue {name}: {what}"
            self.seconds[key] = self.seconds.get(key, 0.0) + now - before[name]

    def _now(self) -> dict[str, float]:
        found = {"own": time.process_time()}
        return found | {name: sum(process.cpu_times()[:2]) for name, process in self.others.items()}


def measure(episodes: int, workers: int, clock: Clock) -> float:
    """Measure a step; returns the virtual seconds of its sampling."""
    uids = [f"s1t{number:05d}" for number in range(episodes // GROUP)]
    tq.kv_batch_put(
        keys=uids,
        partition_id="train",
        tags=[{"is_prompt": True, "global_steps": 1, "status": "pending"} for _ in uids],
    )
    tables, virtual = [], 0.0
    for number in range(workers):
        worker, share = rollout_worker(workers), uids[number::workers]
        with clock.doing("rollout workers: sampling"):
            virtual = max(virtual, MEDIAN * in_virtual_time(sample(worker, share))[1])
        with clock.doing("rollout workers: writing rows"):
            tables.append(asyncio.run(worker.collect(share))[1])
    buffer = TeamReplayBuffer(
        wait=lambda: None,
        trainer_mode="sync",
        trainer_config=SimpleNamespace(),
        max_off_policy_threshold=None,
        max_off_policy_strategy="drop",
        sampler_kwargs=OmegaConf.create({}),
    )
    with clock.doing("driver: verl's replay buffer"):
        batch = buffer.sample(1, "train", len(uids))[0]
    algorithm = algorithm_named("grpo", {}, "options")
    with clock.doing("driver: row table and order"):
        table = concat(tables)
        batch = in_order(batch, table.keys())
    with clock.doing("driver: advantages"):
        result = algorithm.compute(table)
    with clock.doing("driver: writing advantages"):
        put_advantages(batch, result, POLICIES)
    assert len(batch) == episodes * len(POLICIES)
    with clock.doing("driver: removing rows"):
        tq.kv_clear(keys=batch.keys, partition_id="train")
    return virtual


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=4096)
    parser.add_argument("--workers", type=int, default=8, help="rollout workers, which take turns here")
    options = parser.parse_args()
    collect_seldom()
    config = OmegaConf.load(resources.files("transfer_queue") / "config.yaml")
    OmegaConf.update(config, "controller.zmq_info", None)
    config._set_flag("allow_objects", True)
    config.controller.zmq_info, first = start(controller)
    unit, second = start(storage)
    config.backend.SimpleStorage.zmq_info = {"TQ_STORAGE_0": unit}
    interface._maybe_create_tq_client(config)
    parts = {"controller": first, "storage": second}
    measure(GROUP * options.workers, options.workers, Clock(parts))  # what only a first call takes
    clock = Clock(parts)
    virtual = measure(options.episodes, options.workers, clock)
    rows = options.episodes * len(POLICIES)
    scale = 65_536 / options.episodes
    print(f"{options.episodes:,} episodes, {rows:,} rows, {options.workers} rollout workers")
    print(f"{'':<60}{'s':>8}{'us a row':>10}{'65,536 episodes, s a process':>30}")
    for what, value in clock.seconds.items():
        each = value / (options.workers if what.startswith("rollout") else 1)
        print(f"{what:<60}{value:8.2f}{1e6 * value / rows:10.1f}{each * scale:30.1f}")
    print(f"servers, virtual seconds: {virtual:.0f}")


if __name__ == "__main__":
    main()
