"""A trainer with scripted policies and rollout workers, for the asynchronous schedule."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from marl_verl_asynchronous.schedule import Asynchronous
from marl_verl_local.session import MemoryStore
from omegaconf import OmegaConf

from marl_verl.algo.advantage.rows import TableRow
from marl_verl.algo.sampling import Failure, Sample
from marl_verl.algo.sampling.sampler import sample_lines
from marl_verl.backend.protocol import Report, Rows
from marl_verl.config.parts import algorithm_named
from marl_verl.config.schema import Filter
from marl_verl.episode.codec import decode
from marl_verl.errors import MarlError
from marl_verl.threads import in_thread
from marl_verl.trainer.data import Signal
from marl_verl.trainer.metrics import team_metrics

SESSIONS, PATIENCE = 2, 30.0


class Servers:
    """State shared by runtimes and rollout workers: versions, open gates, and pending requests."""

    def __init__(self, policies: Sequence[str]) -> None:
        self.version = dict.fromkeys(policies, 0)
        self.closed: set[str] = set()


class Runtime:
    """A scripted policy. `during` is called in the middle of each update, with its number."""

    def __init__(self, name: str, servers: Servers, room: bool = False) -> None:
        self.name, self.servers = name, servers
        self.sleeps = room
        self.updates: list[tuple[list[str], list[int], int | None]] = []  # (keys, staleness, optimiser updates)
        self.during: Callable[[int], None] = lambda number: None
        self.log: list[str] = []

    def sleep(self) -> None:
        self.log.append(f"sleep {'closed' if self.name in self.servers.closed else 'open'}")

    def update(self, batch: Rows, updates: int | None) -> tuple[Rows, dict[str, float]]:
        self.log.append(f"update {'closed' if self.name in self.servers.closed else 'open'}")
        self.during(len(self.updates))
        ages = [self.servers.version[self.name] - tag["version"] for tag in batch.tags]
        self.updates.append((list(batch.keys), ages, updates))
        padded = Rows([*batch.keys, f"pad-{self.name}-{len(self.updates)}"], [*batch.tags, {}])
        return padded, {"pg_loss": float(len(self.updates))}

    def sync(self, version: int) -> None:
        self.log.append(f"sync {'closed' if self.name in self.servers.closed else 'open'}")
        self.servers.version[self.name] = version


class SamplingWorkers:
    """Scripted rollout workers: a task takes `seconds(index)`, and its rows have the versions of its beginning."""

    def __init__(self, servers: Servers, policies: Sequence[str]) -> None:
        self.servers, self.policies = servers, policies
        self.seconds: Callable[[int], float] = lambda index: 0.002
        self.rows_of: Callable[..., dict[str, Any]] = tag
        self.out: list[str] = []
        self.most = 0
        self.sampled: list[str] = []
        self._done: list[Any] = []
        self._future: Future[Any] = Future()
        self._lock = threading.Lock()
        self.broken: Exception | None = None
        self.error: str | None = None  # of every task

    def dispatch(self, task: Any, step: int) -> None:
        with self._lock:
            self.out.append(task["uid"])
            self.most = max(self.most, len(self.out))
        threading.Thread(target=self._play, args=(task, dict(self.servers.version)), daemon=True).start()

    def _play(self, task: Any, versions: dict[str, int]) -> None:
        time.sleep(self.seconds(task["index"]))
        keys, tags = [], []
        for session in range(SESSIONS):
            for index, policy in enumerate(self.policies):
                keys.append(f"{task['uid']}_{session}_{index}")
                tags.append(self.rows_of(task["uid"], session, index, policy, versions.get(policy, 0)))
        with self._lock:
            self.out.remove(task["uid"])
            self.sampled += keys
            self._done.append(done(task, tags, self.error))
            if not self._future.done():
                self._future.set_result(None)

    def finished(self, updates: Sequence[Future[Any]]) -> list[Any]:
        wait([self._future, *updates], return_when=FIRST_COMPLETED)
        if self.broken is not None:
            raise self.broken
        with self._lock:
            self._future = Future()
            found, self._done = self._done, []
            return found

    beside = staticmethod(in_thread)

    def gate(self, policy: str, change: str) -> None:
        assert (policy in self.servers.closed) == (change == "open")
        self.servers.closed ^= {policy}


def tag(uid: str, session: int, index: int, policy: str, version: int) -> dict[str, Any]:
    """The keys of a row and of its tag."""
    identity = {"uid": uid, "session": session, "index": index, "turn": 0, "agent": policy, "policy": policy}
    place = {"slot": "0", "node": None, "parent": None, "obs": "o", "invalid": False, "length": 2}
    learnt = {"rewards": {"team": float(session)}, "team_reward": None, "version": version}
    return identity | place | learnt | {"response_len": 2, "seq_len": 4}


def done(task: Any, tags: list[Any], error: str | None = None) -> Any:
    uid, failed = task["uid"], Failure(SESSIONS, "timeout", "")
    lines = sample_lines(Sample(failures=[failed]), uid, uid, False)
    rows = decode(list[TableRow], [] if error else [{**tag, "tag": tag} for tag in tags], "rows")
    lines = [*(["episode"] if task["keep"] else []), *lines]
    return Report(uid, uid, rows=rows, error=error, successes=[True], attempts=SESSIONS, failures=[failed], lines=lines)


class Policies:
    """As much of `backend.policies.Policies` as a schedule uses."""

    def __init__(self, trained: list[Runtime], frozen: Sequence[str]) -> None:
        self.trained = trained
        self.runtimes = dict.fromkeys([*(runtime.name for runtime in trained), *frozen])


class Trainer:
    """As much of a trainer, its data and its sampling as a schedule uses."""

    def __init__(self, learning: Sequence[str] = ("a", "b"), frozen: Sequence[str] = (), tasks: int = 4, **own: Any):
        section = {"mode": "async", "fill": 4, "batch": 2, "ahead": 1, "max_staleness": 3, **own}
        self.config = OmegaConf.create({"marl": {"schedule": section}, "data": {"train_batch_size": tasks}})
        self.algorithm, self.declared = algorithm_named("at-grpo-sessions", {}, "options"), ("team",)
        self.servers, self.store = Servers(learning), MemoryStore()
        self.policies = Policies([Runtime(name, self.servers) for name in learning], frozen)
        self.rollouts = SamplingWorkers(self.servers, [*learning, *frozen])
        self.data, self.records = self, SimpleNamespace(keeps=lambda step, position: step % 2 == 0)
        self.step, self.steps = 1, 100
        self.reports: list[Any] = []
        self.lines: list[list[list[str]]] = []  # of each report of each step
        self.sizes: list[int] = []
        self.filters = False
        self.position, self.tasks = 0, tasks

    @property
    def runtimes(self) -> list[Runtime]:
        return self.policies.trained

    @property
    def advantages(self) -> dict[str, float]:
        return {key: float(row["advantages"][0]) for key, row in self.store.rows.items()}

    def next(self, step: int) -> list[dict[str, Any]]:
        indices = range(self.position, self.position + self.tasks)
        self.position += self.tasks
        return [{"uid": "?", "index": index, "keep": self.records.keeps(step, index)} for index in indices]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        yield

    def keep(self, reports: list[Any]) -> None:
        self.reports = reports
        self.lines.append([report.lines for report in reports])
        for report in reports:
            if report.error:
                raise MarlError(report.error)

    def signal(self, table: Any, result: Any) -> Any:
        return Signal.of(table, result, {runtime.name for runtime in self.runtimes}, Filter()) if self.filters else None

    def stored(self, table: Any, result: Any) -> tuple[dict[str, float], Any]:
        self.sizes.append(len(table))
        metrics, signal = team_metrics(self.algorithm.credited(table), result, self.reports), self.signal(table, result)
        return (metrics if signal is None else metrics | signal.metrics()), signal


def steps(trainer: Trainer, schedule: Asynchronous, count: int) -> tuple[list[dict[str, float]], list[str]]:
    """(metrics of each step, keys that are used up)."""
    lines, cleared = [], []
    for _ in range(count):
        metrics, used = within(PATIENCE, lambda: schedule.step({}))
        cleared += used
        lines.append(metrics)
        trainer.step += 1
    return lines, cleared


def within(seconds: float, call: Callable[[], Any]) -> Any:
    """The result of a call that must not hang."""
    return in_thread("test", call).result(timeout=seconds)
