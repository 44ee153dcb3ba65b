"""Buffers and tasks under way: no row and no task is lost or used twice, for any order of events."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from marl_verl.algo.advantage import RowTable
from marl_verl.algo.advantage.rows import JsonRow
from marl_verl.backend.learning.batches import KEPT_FIELDS
from marl_verl.backend.local.policies import MemoryStore
from marl_verl.backend.protocol import Done, Report, Rows
from marl_verl.backend.rollout.context import Gate
from marl_verl.config.parts import algorithm_named
from marl_verl.errors import MarlError
from marl_verl.run.checkpoint import pickles
from marl_verl.threads import in_thread
from marl_verl.trainer.asynchronous import Asynchronous, Dispatch
from marl_verl.trainer.learner import Buffer, Waiting
from marl_verl.trainer.metrics import team_metrics
from marl_verl.trainer.sampling import Signal

sizes = st.integers(1, 6).flatmap(lambda batch: st.tuples(st.integers(batch, 3 * batch), st.just(batch)))
moves = st.lists(st.one_of(st.lists(st.integers(0, 5), max_size=9), st.just("take")), max_size=30)


def row(name: int, version: int) -> Waiting:
    return Waiting(f"s1t{name:05d}_0_0", {"policy": "p"}, version)


@given(sizes, st.integers(1, 4), st.integers(0, 6), moves)
def test_every_row_is_given_once_dropped_once_or_still_there(
    size: tuple[int, int], max_staleness: int, version: int, given_moves: list[Any]
) -> None:
    fill, batch = size
    buffer = Buffer(fill, batch, max_staleness)
    put: list[str] = []
    gone: list[str] = []
    for move in given_moves:
        if move == "take":
            before = buffer.rows
            taken, dropped = buffer.take(version)
            gone += [each.key for each in (*taken, *dropped)]
            assert all(version - each.version <= max_staleness for each in taken)
            assert all(version - each.version > max_staleness for each in dropped)
            fresh = len(before) - len(dropped)
            assert len(taken) == (fresh // batch * batch if fresh >= fill else 0)
            assert [*dropped, *taken, *buffer.rows] == before  # oldest first, the rest as it was
            version += bool(taken)
        else:
            new = [row(len(put) + i, max(0, version - behind)) for i, behind in enumerate(move)]
            buffer.add(new)
            put += [each.key for each in new]
        ages = [each.version for each in buffer.rows]
        assert ages == sorted(ages)
        assert buffer.full == (len(buffer.rows) >= fill)
    assert Counter(put) == Counter([*gone, *(each.key for each in buffer.rows)])


@given(st.lists(st.integers(0, 3), max_size=20))
def test_rows_restored_after_a_resume_are_as_before(versions: list[int]) -> None:
    buffer, again = Buffer(8, 4, 2), Buffer(8, 4, 2)
    buffer.add(row(i, version) for i, version in enumerate(versions))
    again.add(buffer.rows)
    assert again.rows == buffer.rows
    assert again.take(3) == buffer.take(3)


def test_a_full_buffer_gives_whole_batches_and_keeps_the_newest() -> None:
    buffer = Buffer(fill=16, batch=8, max_staleness=4)
    buffer.add(row(i, 0) for i in range(15))
    assert not buffer.full
    assert not buffer.take(0)[0]
    buffer.add(row(i, 1) for i in range(15, 21))
    taken, _ = buffer.take(1)
    assert [each.key for each in taken] == [row(i, 0).key for i in range(16)]
    assert [each.version for each in buffer.rows] == [1] * 5
    buffer.add([Waiting("s1t00016_1_0", {}, 1)])
    assert (len(buffer.rows), buffer.tasks) == (6, 5)


@given(st.integers(1, 3), st.lists(st.integers(0, 8), max_size=30), st.integers(1, 3))
def test_without_settings_an_update_takes_the_rows_of_a_batch_of_tasks(
    size: int, tasks: list[int], updates: int
) -> None:
    buffer = Buffer(None, None, 4, size)
    buffer.add(Waiting(f"s1t{task:05d}_{number}_0", {}, 0) for number, task in enumerate(tasks))
    for _ in range(updates):
        before, missing = buffer.rows, buffer.missing
        assert buffer.full == (buffer.tasks >= size) == (missing <= 0)
        assert missing == size - buffer.tasks
        taken, _ = buffer.take(0)
        assert len({each.key.split("_")[0] for each in taken}) == (size if missing <= 0 else 0)
        assert sorted([*taken, *buffer.rows]) == sorted(before)
        assert not {each.key.split("_")[0] for each in taken} & {each.key.split("_")[0] for each in buffer.rows}


def test_the_tasks_that_a_buffer_lacks_are_estimated_from_the_rows_of_a_task() -> None:
    buffer = Buffer(fill=16, batch=8, max_staleness=4, size=4)
    assert buffer.missing == 4
    buffer.add(Waiting(f"s1t{number // 2:05d}_{number}_0", {}, 0) for number in range(6))
    assert (buffer.tasks, buffer.missing) == (3, 5)  # 10 rows, of 2 a task
    buffer.add(Waiting(f"s2t{number // 2:05d}_{number}_0", {}, 0) for number in range(14))
    assert buffer.missing == -2
    few = Buffer(None, batch=8, max_staleness=4, size=1)
    few.add([row(0, 0)])
    assert (few.full, few.missing) == (False, 1)  # a task, and less than a batch


def test_a_row_of_older_weights_that_comes_late_is_taken_first() -> None:
    buffer = Buffer(fill=2, batch=1, max_staleness=4)
    buffer.add([row(0, 3), row(1, 3), row(2, 1)])
    assert [each.key for each in buffer.take(3)[0]] == [row(i, 0).key for i in (2, 0, 1)]


class Workers:
    """Remembers what it was given, by batch of the data."""

    def __init__(self) -> None:
        self.given: list[tuple[int, str, Any]] = []

    def dispatch(self, tasks: Sequence[Any], step: int) -> None:
        self.given += [(step, task["uid"], task["index"]) for task in tasks]


class Data:
    """Batches of four tasks, numbered without end; a position that can be kept."""

    def __init__(self, position: int = 0) -> None:
        self.position = position

    def fetch(self) -> list[dict[str, Any]]:
        first = 4 * self.position
        self.position += 1
        return [{"uid": "verl's", "keep": True, "index": index} for index in range(first, first + 4)]


@given(st.integers(1, 9), st.lists(st.one_of(st.integers(0, 8), st.just("stop")), max_size=25))
def test_every_task_is_dealt_with_once_however_often_the_run_is_continued(limit: int, given_moves: list[Any]) -> None:
    data, workers = Data(), Workers()
    dispatch = Dispatch(data.fetch, limit)
    under_way: list[tuple[int, str, Any]] = []
    finished: list[tuple[int, str, Any]] = []
    for move in given_moves:
        dispatch.fill(workers, {"p": 0}, limit)
        under_way, workers.given = under_way + workers.given, []
        assert len(dispatch) == len(under_way) == limit
        if move == "stop":  # what was under way is lost, and handed out again
            state, data = dispatch.state(), Data(data.position)
            dispatch, under_way = Dispatch(data.fetch, limit), []
            dispatch.restore(state)
        else:
            task = under_way.pop(move % len(under_way))
            dispatch.done(task[1])
            finished.append(task)
    dispatch.fill(workers, {"p": 0}, limit)
    everything = finished + under_way + workers.given
    assert sorted(index for _, _, index in everything) == list(range(len(everything)))
    assert len({uid for _, uid, _ in everything}) == len(everything)
    # its seeds and its name depend on its place in the data alone
    assert all((step, uid) == (index // 4 + 1, f"s{index // 4 + 1}t{index % 4:05d}") for step, uid, index in everything)


# The asynchronous schedule against scripted policies and rollout workers; gates; incompatible settings


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
        self.config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"free_cache_engine": room}}})
        self.updates: list[tuple[list[str], list[int], int | None]] = []  # (keys, staleness, optimiser updates)
        self.during: Callable[[int], None] = lambda number: None
        self.log: list[str] = []

    def sleep(self) -> None:
        self.log.append(f"sleep {'closed' if self.name in self.servers.closed else 'open'}")

    def update(self, batch: Rows, updates: int | None) -> tuple[Rows, dict[str, float]]:
        self.log.append(f"update {'closed' if self.name in self.servers.closed else 'open'}")
        self.during(len(self.updates))
        ages = [self.servers.version[self.name] - tag["min_global_steps"] for tag in batch.tags]
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

    def dispatch(self, tasks: Sequence[Any], step: int) -> None:
        for task in tasks:
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
            self._done.append(done(task["uid"], keys, tags, self.error))
            if not self._future.done():
                self._future.set_result(None)

    def waiting(self) -> list[Future[Any]]:
        with self._lock:
            if self._future.done() and not self._done and self.broken is None:
                self._future = Future()
            return [self._future]

    def finished(self) -> list[Any]:
        if self.broken is not None:
            raise self.broken
        with self._lock:
            found, self._done = self._done, []
            return found

    def close_gate(self, policy: str) -> None:
        assert policy not in self.servers.closed
        self.servers.closed.add(policy)

    def open_gate(self, policy: str) -> None:
        self.servers.closed.remove(policy)


def tag(uid: str, session: int, index: int, policy: str, version: int) -> dict[str, Any]:
    """The keys of a row and of its tag."""
    identity = {"uid": uid, "session": session, "index": index, "turn": 0, "agent": policy, "policy": policy}
    place = {"slot": "0", "node": None, "parent": None, "obs": "o", "invalid": False, "length": 2}
    return {
        **identity,
        **place,
        "rewards": {"team": float(session)},
        "team_reward": None,
        "min_global_steps": version,
        "max_global_steps": version,
        "response_len": 2,
        "seq_len": 4,
    }


def done(uid: str, keys: list[str], tags: list[Any], error: str | None = None) -> Any:
    report = Report(uid, uid, error=error, successes=[True], attempts=SESSIONS)
    keys, tags = ([], []) if error else (keys, tags)
    rows = [{name: each[name] for name in JsonRow.__struct_fields__ if name in each} for each in tags]
    table = RowTable.from_rows(rows, ("team",)) if rows else None
    return Done([report], Rows(keys[::-1], tags[::-1]), table)  # in another order than the table


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
        self.algorithm = algorithm_named("at-grpo-sessions", {}, "options")
        self.servers, self.store = Servers(learning), MemoryStore()
        self.policies = Policies([Runtime(name, self.servers) for name in learning], frozen)
        self.rollouts = SamplingWorkers(self.servers, [*learning, *frozen])
        self.data = self.sampling = self
        self.step, self.steps = 1, 100
        self.reports: list[Any] = []
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
        return [{"uid": "?", "index": index, "keep": True} for index in indices]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        yield

    def keep(self, reports: list[Any]) -> None:
        self.reports = reports
        for report in reports:
            if report.error:
                raise MarlError(report.error)

    def signal(self, table: Any, result: Any) -> Any:
        return Signal.of(table, result, {runtime.name for runtime in self.runtimes}) if self.filters else None

    def stored(self, table: Any, result: Any) -> dict[str, float]:
        self.sizes.append(len(table))
        return team_metrics(self.algorithm.credited(table), result, self.reports)


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


def until(call: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    limit = time.monotonic() + PATIENCE
    while not call():
        assert time.monotonic() < limit
        time.sleep(0.005)


# -- steps -------------------------------------------------------------------------------------------------------


def test_every_row_is_learnt_from_once_dropped_or_in_a_buffer() -> None:
    trainer = Trainer()
    trainer.rollouts.seconds = lambda index: 0.001 * (index % 7)
    schedule = Asynchronous(trainer, trainer.config)
    lines, cleared = steps(trainer, schedule, 12)
    schedule.settle()
    for runtime, name in zip(trainer.runtimes, "ab", strict=True):
        learner = schedule.learners[name]
        learnt = [key for keys, _, _ in runtime.updates for key in keys]
        waiting = [row.key for row in learner.buffer.rows]
        assert max(Counter([*learnt, *waiting]).values()) == 1
        taken_in = [key for key in trainer.advantages if key.endswith("_0" if name == "a" else "_1")]
        dropped = sum(line[f"policy/{name}/stale_dropped"] for line in lines) + learner.dropped
        assert len(learnt) + len(waiting) + dropped == len(taken_in) == 12 * 4 * SESSIONS
        assert all(updates and len(keys) == 2 * updates for keys, _, updates in runtime.updates)
        assert all(0 <= age <= 3 for _, ages, _ in runtime.updates for age in ages)
        assert learner.version == len(runtime.updates) == trainer.servers.version[name]
        reported = sum(line[f"policy/{name}/trained_rows"] for line in lines) + sum(
            len(staleness) for _, staleness in learner.learnt
        )
        assert reported == len(learnt)
        # what has left the store is what was learnt from, with its padding, and nothing that waits
        assert not set(waiting) & set(cleared)
    assert max(Counter(cleared).values()) == 1
    assert {key: value > 0 for key, value in trainer.advantages.items()} == {
        key: "_1_" in key
        for key in trainer.advantages  # session 1 has the higher reward
    }
    assert trainer.rollouts.most <= 8  # (1 + ahead) batches
    assert trainer.sizes == [4 * SESSIONS * 2] * 12


def test_rows_of_groups_without_variance_do_not_enter_a_buffer() -> None:
    trainer = Trainer()
    trainer.filters = True
    flat = {f"s{batch}t{task:05d}" for batch in range(1, 20) for task in (0, 3)}
    rows = trainer.rollouts.rows_of
    trainer.rollouts.rows_of = lambda *place: {
        **rows(*place),
        **({"rewards": {"team": 1.0}} if place[0] in flat else {}),
    }
    schedule = Asynchronous(trainer, trainer.config)
    lines, cleared = steps(trainer, schedule, 12)
    schedule.settle()
    learnt = {key for runtime in trainer.runtimes for keys, _, _ in runtime.updates for key in keys}
    waiting = {row.key for learner in schedule.learners.values() for row in learner.buffer.rows}
    assert learnt
    assert not {key.split("_")[0] for key in learnt | waiting} & flat
    assert sum(line["filter/dropped_rows"] for line in lines) == len(
        [key for key in trainer.advantages if key.split("_")[0] in flat]
    )
    # rows that are not trained on leave the store
    assert {key for key in trainer.advantages if key.split("_")[0] in flat} <= set(cleared)
    assert max(Counter(cleared).values()) == 1


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_by_default_an_update_has_the_rows_of_a_batch_of_tasks_and_ahead_bounds_their_staleness(ahead: int) -> None:
    trainer = Trainer(fill=None, batch=None, ahead=ahead, max_staleness=9)
    trainer.rollouts.seconds = lambda index: 0.001 * (index % 7)
    trainer.steps = 10
    for runtime in trainer.runtimes:
        runtime.during = lambda number: time.sleep(0.03)
    schedule = Asynchronous(trainer, trainer.config)
    steps(trainer, schedule, 10)
    for runtime in trainer.runtimes:
        assert len(runtime.updates) == 10  # as many as with sync, all before the last step ends
        for keys, ages, updates in runtime.updates:
            assert updates is None  # as with sync
            assert (len(keys), len({key.split("_")[0] for key in keys})) == (4 * SESSIONS, 4)
            # a task that takes long meets one update more
            assert max(ages) <= (ahead + 1 if ahead else 0)
    assert trainer.rollouts.most <= (1 + ahead) * 4


def test_without_tasks_ahead_nothing_is_sampled_while_a_policy_updates() -> None:
    trainer = Trainer(fill=None, batch=None, ahead=0)
    out: list[int] = []

    def during(number: int) -> None:
        time.sleep(0.05)
        out.append(len(trainer.rollouts.out))

    for runtime in trainer.runtimes:
        runtime.during = during
    steps(trainer, Asynchronous(trainer, trainer.config), 6)
    assert out
    assert not any(out)


def test_the_fast_policy_learns_on_while_the_slow_one_updates() -> None:
    trainer = Trainer(ahead=3)
    fast, slow = trainer.runtimes
    enough, begun = threading.Event(), threading.Event()

    def wait_for_the_fast(number: int) -> None:
        begun.set()
        assert enough.wait(PATIENCE)

    def count(number: int) -> None:
        if begun.wait(PATIENCE) and number >= 3:
            enough.set()

    slow.during, fast.during = wait_for_the_fast, count
    schedule = Asynchronous(trainer, trainer.config)
    within(PATIENCE, lambda: [steps(trainer, schedule, 1) for _ in range(6)])
    schedule.settle()
    assert len(fast.updates) >= 4
    first = slow.updates[0]
    assert len(first[0]) >= 4
    # what came meanwhile is learnt from in one go
    assert len(slow.updates) < len(fast.updates)
    assert len(slow.updates[1][0]) > len(first[0])


def test_a_policy_that_learns_too_slowly_holds_sampling_back() -> None:
    trainer = Trainer()
    release = threading.Event()
    trainer.runtimes[1].during = lambda number: release.wait(PATIENCE)
    schedule = Asynchronous(trainer, trainer.config)
    running = in_thread("steps", lambda: steps(trainer, schedule, 20))
    slow = schedule.learners["b"].buffer
    until(lambda: slow.tasks >= 4 and not trainer.rollouts.out)
    time.sleep(0.3)  # time for everything, if nothing held it
    assert not running.done()
    assert slow.tasks <= 8  # from `ahead` batches on nothing new is begun; what is under way comes yet
    assert len(trainer.rollouts.sampled) < 20 * 4 * SESSIONS * 2
    release.set()
    lines, _ = running.result(timeout=PATIENCE)
    assert len(lines) == 20


def test_a_task_under_way_holds_back_updates_that_would_make_it_too_old() -> None:
    trainer = Trainer(learning=["a"], ahead=2)
    release = threading.Event()
    workers = trainer.rollouts
    workers.seconds = lambda index: float(not release.wait(PATIENCE)) if index == 0 else 0.001
    schedule = Asynchronous(trainer, trainer.config)
    (runtime,) = trainer.runtimes
    running = in_thread("steps", lambda: steps(trainer, schedule, 20))
    until(lambda: schedule.learners["a"].buffer.tasks >= 8 and len(workers.out) == 1)
    assert len(runtime.updates) == 3  # max_staleness: a fourth would make the rows of task 0 four updates old
    assert not running.done()
    release.set()
    lines, _ = running.result(timeout=PATIENCE)
    within(PATIENCE, schedule.settle)
    learnt = [key for keys, _, _ in runtime.updates for key in keys]
    assert {"s1t00000_0_0", "s1t00000_1_0"} <= set(learnt)
    assert sum(line["train/stale_dropped"] for line in lines) == 0
    assert len(runtime.updates) > 3


def test_a_row_beyond_the_bound_is_dropped_and_counted() -> None:
    trainer = Trainer(learning=["a"])
    schedule = Asynchronous(trainer, trainer.config)
    learner = schedule.learners["a"]
    learner.version = trainer.servers.version["a"] = 9
    old = [Waiting(f"old_{i}_0", tag("old", i, 0, "a", 5), 5) for i in range(3)]
    learner.buffer.add(old)
    (line, *_), cleared = steps(trainer, schedule, 2)
    assert line["policy/a/stale_dropped"] == line["train/stale_dropped"] == 3
    assert {row.key for row in old} <= set(cleared)
    assert not {row.key for row in old} & {key for keys, _, _ in trainer.runtimes[0].updates for key in keys}


def test_rows_of_frozen_policies_are_compared_and_not_buffered() -> None:
    trainer = Trainer(learning=["a"], frozen=["judge"])
    schedule = Asynchronous(trainer, trainer.config)
    (line,), cleared = steps(trainer, schedule, 1)
    assert not [key for key in cleared if key.endswith("_1")]  # the store has no tensors of them
    assert "agent/judge/reward" in line
    assert not any(name.startswith("policy/judge") for name in line)
    assert schedule.versions()["judge"] == 0


def test_the_last_step_waits_for_what_is_being_learnt() -> None:
    trainer = Trainer(learning=["a"])
    trainer.steps = 2
    trainer.runtimes[0].during = lambda number: time.sleep(0.1)
    schedule = Asynchronous(trainer, trainer.config)
    lines, cleared = steps(trainer, schedule, 2)
    assert schedule.learners["a"].future is None
    learnt = [key for keys, _, _ in trainer.runtimes[0].updates for key in keys]
    assert sum(line["policy/a/trained_rows"] for line in lines) == len(learnt) > 0
    assert set(learnt) <= set(cleared)


# -- gates -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("room", "expected"), [(False, ["update open"]), (True, ["sleep closed", "update closed"])])
def test_no_request_is_in_flight_while_weights_change(room: bool, expected: list[str]) -> None:
    trainer = Trainer(learning=["a"])
    trainer.policies = Policies([Runtime("a", trainer.servers, room)], [])
    schedule = Asynchronous(trainer, trainer.config)
    steps(trainer, schedule, 3)
    within(PATIENCE, schedule.settle)
    log = trainer.runtimes[0].log
    assert log == [*expected, "sync closed"] * len(trainer.runtimes[0].updates)
    assert log
    assert not trainer.servers.closed


def test_a_gate_waits_for_requests_under_way_and_holds_new_ones() -> None:
    async def play() -> list[str]:
        gate, seen, finish = Gate(), [], asyncio.Event()

        async def request(name: str) -> None:
            async with gate.request():
                seen.append(f"{name} begins")
                await finish.wait()
                seen.append(f"{name} ends")

        first = asyncio.create_task(request("first"))
        await asyncio.sleep(0)
        closing = asyncio.create_task(gate.close())
        await asyncio.sleep(0)
        second = asyncio.create_task(request("second"))
        await asyncio.sleep(0.01)
        assert seen == ["first begins"]
        assert not closing.done()
        finish.set()
        await closing
        await first
        seen.append("weights change")
        await asyncio.sleep(0.01)
        gate.open()
        await second
        return seen

    assert asyncio.run(play()) == ["first begins", "first ends", "weights change", "second begins", "second ends"]


def test_a_request_that_fails_or_is_cancelled_does_not_keep_a_gate_from_closing() -> None:
    async def play() -> None:
        gate = Gate()

        async def request(seconds: float) -> None:
            async with gate.request():
                await asyncio.sleep(seconds)
                raise ValueError("no answer")

        failing, hanging = asyncio.create_task(request(0)), asyncio.create_task(request(60))
        await asyncio.sleep(0.01)
        hanging.cancel()
        await asyncio.wait_for(gate.close(), PATIENCE)
        held = asyncio.create_task(request(0))  # cancelled while it is held
        await asyncio.sleep(0)
        held.cancel()
        await asyncio.gather(failing, hanging, held, return_exceptions=True)
        gate.open()
        await asyncio.wait_for(gate.close(), PATIENCE)

    asyncio.run(play())


def test_a_gate_that_closes_again_at_once_holds_those_that_it_was_about_to_let_in() -> None:
    async def play() -> list[str]:
        gate, seen = Gate(), []

        async def request() -> None:
            async with gate.request():
                seen.append("in")

        await gate.close()
        held = asyncio.create_task(request())
        await asyncio.sleep(0)
        gate.open()
        await gate.close()
        await asyncio.sleep(0.01)
        seen.append("closed")
        gate.open()
        await held
        return seen

    assert asyncio.run(play()) == ["closed", "in"]


# -- errors ------------------------------------------------------------------------------------------------------


def test_an_error_in_an_update_stops_the_step_at_once() -> None:
    trainer = Trainer(tasks=6)
    workers = trainer.rollouts
    workers.seconds = lambda index: 0.001 if index < 3 else 3600  # the step would never end

    def fail(number: int) -> None:
        time.sleep(0.2)  # the step waits for tasks by then
        raise RuntimeError("out of memory")

    trainer.runtimes[1].during = fail
    schedule = Asynchronous(trainer, trainer.config)
    with pytest.raises(RuntimeError, match="out of memory"):
        within(PATIENCE, lambda: schedule.step({}))


def test_settling_raises_an_error_at_once_though_another_policy_is_busy() -> None:
    trainer = Trainer()
    busy, release = threading.Event(), threading.Event()

    def wait(number: int) -> None:
        busy.set()
        release.wait(PATIENCE)

    def fail(number: int) -> None:
        assert busy.wait(PATIENCE)
        time.sleep(0.05)  # in `settle` by then
        raise RuntimeError("a socket is gone")

    trainer.runtimes[0].during, trainer.runtimes[1].during = wait, fail
    schedule = Asynchronous(trainer, trainer.config)
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match="a socket is gone"):
        within(PATIENCE, lambda: (schedule.step({}), schedule.settle()))
    assert time.monotonic() - begun < PATIENCE / 2
    release.set()


def test_an_error_of_a_rollout_worker_or_a_sampler_stops_the_step() -> None:
    trainer = Trainer()
    schedule = Asynchronous(trainer, trainer.config)
    trainer.rollouts.broken = RuntimeError("worker died")
    with pytest.raises(RuntimeError, match="worker died"):
        within(PATIENCE, lambda: schedule.step({}))
    trainer = Trainer()
    trainer.rollouts.error = "sampling failed"
    schedule = Asynchronous(trainer, trainer.config)
    with pytest.raises(MarlError, match="sampling failed"):
        within(PATIENCE, lambda: schedule.step({}))


# -- checkpoints -------------------------------------------------------------------------------------------------


def test_a_continued_run_has_the_rows_the_versions_and_the_tasks_that_it_was_stopped_with(tmp_path: Any) -> None:
    trainer = Trainer(fill=5, batch=3)
    trainer.rollouts.seconds = lambda index: 0.001 * (index % 5)
    schedule = Asynchronous(trainer, trainer.config)
    steps(trainer, schedule, 5)
    schedule.settle()
    waiting = {name: learner.buffer.rows for name, learner in schedule.learners.items()}
    assert any(waiting.values())
    keys = list(trainer.advantages)
    values = [torch.full((1 + number % 3,), float(number)) for number in range(len(keys))]
    trainer.store.put(keys, dict.fromkeys(KEPT_FIELDS, values))
    torch.save(schedule.state(), tmp_path / "schedule.pt")
    dealt_with = set(keys)
    learnt = {key for runtime in trainer.runtimes for keys, _, _ in runtime.updates for key in keys}

    again = Trainer(fill=5, batch=3)
    again.position = trainer.position
    resumed = Asynchronous(again, again.config)
    resumed.restore(pickles.load(tmp_path / "schedule.pt"))
    for name, learner in resumed.learners.items():
        assert learner.buffer.rows == waiting[name]
        assert learner.version == schedule.versions()[name] == resumed.versions()[name] > 0
        again.servers.version[name] = learner.version
        for row in waiting[name]:
            for field, value in trainer.store.rows[row.key].items():
                assert torch.equal(again.store.rows[row.key][field], value)
    steps(again, resumed, 6)
    within(PATIENCE, resumed.settle)
    more = {*again.advantages} - {row.key for rows in waiting.values() for row in rows}
    assert not more & dealt_with
    tasks = sorted({key.split("_")[0] for key in more | dealt_with})
    assert len(tasks) == (5 + 6) * 4
    # in the order of the data but for what overtook: at most those under way are missing
    names = [f"s{batch}t{position:05d}" for batch in range(1, 14) for position in range(4)]
    assert len(set(names[: len(tasks)]) - set(tasks)) <= 8
    learnt_later = {key for runtime in again.runtimes for keys, _, _ in runtime.updates for key in keys}
    assert not learnt_later & learnt
    assert {row.key for rows in waiting.values() for row in rows} <= learnt_later


# -- what is refused ---------------------------------------------------------------------------------------------
