"""Buffers and tasks under way: no row and no task is lost or used twice, for any order of events."""

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from marl_verl_asynchronous.schedule import Buffer, Dispatch, Waiting

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


@given(st.integers(1, 3), st.lists(st.integers(0, 8), max_size=30), st.integers(1, 3))
def test_by_default_an_update_takes_the_rows_of_a_batch(size: int, tasks: list[int], updates: int) -> None:
    buffer = Buffer(None, None, 4, size)
    buffer.add(Waiting(f"s1t{task:05d}_{number}_0", {}, 0) for number, task in enumerate(tasks))
    for _ in range(updates):
        before, missing = buffer.rows, buffer.estimate_missing()
        assert buffer.full == (buffer.tasks >= size) == (missing <= 0)
        assert missing == size - buffer.tasks
        taken, _ = buffer.take(0)
        assert len({each.key.split("_")[0] for each in taken}) == (size if missing <= 0 else 0)
        assert sorted([*taken, *buffer.rows]) == sorted(before)
        assert not {each.key.split("_")[0] for each in taken} & {each.key.split("_")[0] for each in buffer.rows}


def test_the_tasks_that_a_buffer_lacks_are_estimated_from_the_rows_of_a_task() -> None:
    buffer = Buffer(fill=16, batch=8, max_staleness=4, size=4)
    assert buffer.estimate_missing() == 4
    buffer.add(Waiting(f"s1t{number // 2:05d}_{number}_0", {}, 0) for number in range(6))
    assert (buffer.tasks, buffer.estimate_missing()) == (3, 5)  # 10 rows, of 2 a task
    buffer.add(Waiting(f"s2t{number // 2:05d}_{number}_0", {}, 0) for number in range(14))
    assert buffer.estimate_missing() == -2
    few = Buffer(None, batch=8, max_staleness=4, size=1)
    few.add([row(0, 0)])
    assert (few.full, few.estimate_missing()) == (False, 1)  # a task, and less than a batch


class Workers:
    """Remembers what it was given, by batch of the data."""

    def __init__(self) -> None:
        self.given: list[tuple[int, str, Any]] = []

    def dispatch(self, task: Any, step: int) -> None:
        self.given.append((step, task["uid"], task["index"]))


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
