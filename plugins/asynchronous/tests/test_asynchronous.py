"""The asynchronous schedule: no row is lost or used twice, bounds of staleness, errors, and a resume."""

import threading
import time
from collections import Counter
from typing import Any

import pytest
import torch
from marl_verl_asynchronous.schedule import KEPT_FIELDS, Asynchronous

from marl_verl.errors import MarlError
from marl_verl.run.checkpoint import folders
from marl_verl.threads import in_thread
from tests.scripted_schedule import PATIENCE, SESSIONS, Policies, Runtime, Trainer, steps, within
from tests.waiting import wait_until


def test_every_row_is_learnt_from_once_dropped_or_in_a_buffer() -> None:
    trainer = Trainer()
    trainer.rollouts.seconds = lambda index: 0.001 * (index % 7)
    schedule = Asynchronous(trainer, trainer.rollouts)
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
        reported = sum(line[f"policy/{name}/trained_rows"] for line in lines)
        assert reported + sum(len(staleness) for _, staleness in learner.learnt) == len(learnt)
        # what has left the store is what was learnt from, with its padding, and nothing that waits
        assert not set(waiting) & set(cleared)
    assert max(Counter(cleared).values()) == 1
    # session 1 has the higher reward
    assert all((value > 0) == ("_1_" in key) for key, value in trainer.advantages.items())
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
    schedule = Asynchronous(trainer, trainer.rollouts)
    lines, cleared = steps(trainer, schedule, 12)
    schedule.settle()
    learnt = {key for runtime in trainer.runtimes for keys, _, _ in runtime.updates for key in keys}
    waiting = {row.key for learner in schedule.learners.values() for row in learner.buffer.rows}
    assert learnt
    assert not {key.split("_")[0] for key in learnt | waiting} & flat
    dropped = [key for key in trainer.advantages if key.split("_")[0] in flat]
    assert sum(line["filter/dropped_rows"] for line in lines) == len(dropped)
    assert set(dropped) <= set(cleared)  # rows that are not trained on leave the store
    assert max(Counter(cleared).values()) == 1


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_by_default_an_update_has_the_rows_of_a_batch_of_tasks_and_ahead_bounds_their_staleness(ahead: int) -> None:
    trainer = Trainer(fill=None, batch=None, ahead=ahead, max_staleness=9)
    trainer.rollouts.seconds = lambda index: 0.001 * (index % 7)
    trainer.steps = 10
    for runtime in trainer.runtimes:
        runtime.during = lambda number: time.sleep(0.03)
    steps(trainer, Asynchronous(trainer, trainer.rollouts), 10)
    for runtime in trainer.runtimes:
        assert len(runtime.updates) == 10  # as many as with sync, all before the last step ends
        for keys, ages, updates in runtime.updates:
            assert updates is None  # as with sync
            assert (len(keys), len({key.split("_")[0] for key in keys})) == (4 * SESSIONS, 4)
            # a task that takes long meets one update more
            assert max(ages) <= (ahead + 1 if ahead else 0)
    assert trainer.rollouts.most <= (1 + ahead) * 4


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
    schedule = Asynchronous(trainer, trainer.rollouts)
    within(PATIENCE, lambda: [steps(trainer, schedule, 1) for _ in range(6)])
    schedule.settle()
    assert len(fast.updates) >= 4
    first = slow.updates[0]
    assert len(first[0]) >= 4
    # what came meanwhile is learnt from in one go
    assert len(slow.updates) < len(fast.updates)
    assert len(slow.updates[1][0]) > len(first[0])


def test_a_policy_that_learns_too_slowly_holds_sampling_back() -> None:
    trainer, release = Trainer(), threading.Event()
    trainer.runtimes[1].during = lambda number: release.wait(PATIENCE)
    schedule = Asynchronous(trainer, trainer.rollouts)
    running = in_thread("steps", lambda: steps(trainer, schedule, 20))
    slow = schedule.learners["b"].buffer
    wait_until(lambda: slow.tasks >= 4 and not trainer.rollouts.out, PATIENCE)
    time.sleep(0.3)  # time for everything, if nothing held it
    assert not running.done()
    assert slow.tasks <= 8  # from `ahead` batches on nothing new is begun; what is under way comes yet
    assert len(trainer.rollouts.sampled) < 20 * 4 * SESSIONS * 2
    release.set()
    lines, _ = running.result(timeout=PATIENCE)
    assert len(lines) == 20


def test_a_task_under_way_holds_back_updates_that_would_make_it_too_old() -> None:
    trainer = Trainer(learning=["a"], ahead=2)
    release, workers = threading.Event(), trainer.rollouts
    workers.seconds = lambda index: float(not release.wait(PATIENCE)) if index == 0 else 0.001
    schedule = Asynchronous(trainer, trainer.rollouts)
    (runtime,) = trainer.runtimes
    running = in_thread("steps", lambda: steps(trainer, schedule, 20))
    wait_until(lambda: schedule.learners["a"].buffer.tasks >= 8 and len(workers.out) == 1, PATIENCE)
    assert len(runtime.updates) == 3  # max_staleness: a fourth would make the rows of task 0 four updates old
    assert not running.done()
    release.set()
    lines, _ = running.result(timeout=PATIENCE)
    within(PATIENCE, schedule.settle)
    assert {"s1t00000_0_0", "s1t00000_1_0"} <= {key for keys, _, _ in runtime.updates for key in keys}
    assert sum(line["train/stale_dropped"] for line in lines) == 0
    assert len(runtime.updates) > 3


def test_rows_of_frozen_policies_are_compared_and_not_buffered() -> None:
    trainer = Trainer(learning=["a"], frozen=["judge"])
    schedule = Asynchronous(trainer, trainer.rollouts)
    (line,), cleared = steps(trainer, schedule, 1)
    assert not [key for key in cleared if key.endswith("_1")]  # the store has no tensors of them
    assert "agent/judge/reward" in line
    assert not any(name.startswith("policy/judge") for name in line)
    assert schedule.versions()["judge"] == 0


def test_the_last_step_waits_for_what_is_being_learnt() -> None:
    trainer = Trainer(learning=["a"])
    trainer.steps = 2
    trainer.runtimes[0].during = lambda number: time.sleep(0.1)
    schedule = Asynchronous(trainer, trainer.rollouts)
    lines, cleared = steps(trainer, schedule, 2)
    assert schedule.learners["a"].future is None
    learnt = [key for keys, _, _ in trainer.runtimes[0].updates for key in keys]
    assert sum(line["policy/a/trained_rows"] for line in lines) == len(learnt) > 0
    assert set(learnt) <= set(cleared)


def test_a_journal_has_the_episodes_of_all_tasks_of_its_step_or_only_failures() -> None:
    """Also of tasks that an earlier step began, whose journal is not stored."""
    trainer = Trainer()
    trainer.rollouts.seconds = lambda index: 0.001 * (index % 7)
    steps(trainer, Asynchronous(trainer, trainer.rollouts), 6)
    for step, lines in enumerate(trainer.lines, start=1):
        assert len(lines) == 4
        assert {line[0] == "episode" for line in lines} == {step % 2 == 0}
        assert all('"failure":"timeout"' in line[-1] for line in lines)


@pytest.mark.parametrize(("room", "expected"), [(False, ["update open"]), (True, ["sleep closed", "update closed"])])
def test_no_request_is_in_flight_while_weights_change(room: bool, expected: list[str]) -> None:
    trainer = Trainer(learning=["a"])
    trainer.policies = Policies([Runtime("a", trainer.servers, room)], [])
    schedule = Asynchronous(trainer, trainer.rollouts)
    steps(trainer, schedule, 3)
    within(PATIENCE, schedule.settle)
    log = trainer.runtimes[0].log
    assert log == [*expected, "sync closed"] * len(trainer.runtimes[0].updates)
    assert log
    assert not trainer.servers.closed


def test_an_error_in_an_update_stops_the_step_at_once() -> None:
    trainer = Trainer(tasks=6)
    trainer.rollouts.seconds = lambda index: 0.001 if index < 3 else 3600  # the step would never end

    def fail(number: int) -> None:
        time.sleep(0.2)  # the step waits for tasks by then
        raise RuntimeError("out of memory")

    trainer.runtimes[1].during = fail
    schedule = Asynchronous(trainer, trainer.rollouts)
    with pytest.raises(RuntimeError, match="out of memory"):
        within(PATIENCE, lambda: schedule.step({}))


def test_an_error_of_a_rollout_worker_or_a_sampler_stops_the_step() -> None:
    trainer = Trainer()
    schedule = Asynchronous(trainer, trainer.rollouts)
    trainer.rollouts.broken = RuntimeError("worker died")
    with pytest.raises(RuntimeError, match="worker died"):
        within(PATIENCE, lambda: schedule.step({}))
    trainer = Trainer()
    trainer.rollouts.error = "sampling failed"
    schedule = Asynchronous(trainer, trainer.rollouts)
    with pytest.raises(MarlError, match="sampling failed"):
        within(PATIENCE, lambda: schedule.step({}))


def test_a_continued_run_has_the_rows_the_versions_and_the_tasks_that_it_was_stopped_with(tmp_path: Any) -> None:
    trainer = Trainer(fill=5, batch=3)
    trainer.rollouts.seconds = lambda index: 0.001 * (index % 5)
    schedule = Asynchronous(trainer, trainer.rollouts)
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
    resumed = Asynchronous(again, again.rollouts)
    resumed.restore(folders.load_pickle(tmp_path / "schedule.pt"))
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
