"""The filter of groups, refills and the curriculum: which tasks a step samples, and which rows it trains on."""

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_local.session import MemoryStore
from marl_verl_testing.rows import algorithm
from omegaconf import DictConfig, OmegaConf

from marl_verl.algo.advantage import AdvantageResult, RowTable
from marl_verl.algo.advantage.rows import TableRow
from marl_verl.backend.protocol import Report, TaskRow
from marl_verl.config.schema import Filter, marl_of
from marl_verl.episode.codec import decode
from marl_verl.errors import MarlError
from marl_verl.trainer import loop
from marl_verl.trainer.data import FILE, AdvantageMemory, Curriculum, Signal, TaskData
from marl_verl.trainer.loop import Synchronous

EPISODES = 2


def row(uid: str, session: int, index: int, reward: float, **own: Any) -> dict[str, Any]:
    """The agent is the policy."""
    identity = {"uid": uid, "session": session, "index": index, "turn": 0, "agent": "a", "policy": "a", "slot": "0"}
    place = {"node": None, "parent": None, "obs": "o", "invalid": False, "length": 2}
    return {**identity, **place, "rewards": {"team": reward}, "team_reward": None, **own}


def computed(table: RowTable, **options: Any) -> AdvantageResult:
    return algorithm("grpo", **options).compute(table)


def test_rows_of_groups_without_variance_are_not_trained_on() -> None:
    rows = [row("s1t0", s, 0, reward=1.0) for s in range(2)] + [row("s1t1", s, 0, reward=s) for s in range(2)]
    table = RowTable.from_rows(rows)
    signal = Signal.of(table, computed(table), {"a"}, Filter())
    assert signal == Signal([2, 3], frozenset(["s1t1"]), dropped_groups=1, dropped_rows=2)
    assert signal.metrics() == {"filter/dropped_groups": 1, "filter/dropped_rows": 2, "filter/useful_tasks": 1}


def test_groups_are_those_that_the_algorithm_declares() -> None:
    """With a group per agent, the rows of one agent teach and those of the other do not; the task does."""
    agents = ("a", "b")
    rows = [
        row("s1t0", s, i, reward=s if agent == "a" else 0.5, agent=agent, policy=agent)
        for s in range(2)
        for i, agent in enumerate(agents)
    ]
    table = RowTable.from_rows(rows)
    by_agent = Signal.of(table, computed(table, group="agent"), set(agents), Filter())
    assert (by_agent.rows, by_agent.tasks, by_agent.dropped_groups) == ([0, 2], {"s1t0"}, 1)
    assert Signal.of(table, computed(table, group="task"), set(agents), Filter()).rows == [0, 1, 2, 3]
    frozen = Signal.of(table, computed(table, group="agent"), {"b"}, Filter())
    assert (frozen.rows, frozen.tasks, frozen.dropped_groups) == ([], frozenset(), 1)


@given(st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=4), min_size=1, max_size=6))
def test_what_is_dropped_has_no_gradient_and_nothing_else_is_dropped(rewards: list[list[int]]) -> None:
    rows = [row(f"s1t{t}", s, 0, r / 3) for t, group in enumerate(rewards) for s, r in enumerate(group)]
    table = RowTable.from_rows(rows)
    found = computed(table)
    signal = Signal.of(table, found, {"a"}, Filter())
    assert signal.tasks == {f"s1t{t}" for t, group in enumerate(rewards) if len(set(group)) > 1}
    dropped = np.setdiff1d(np.arange(len(rows)), signal.rows)
    assert not found.advantage[dropped].any()
    assert signal.dropped_rows == len(dropped)


class Trainer:
    """As much of a trainer as a step uses. Episodes of a task in `useful` differ; those in `failing` have no rows.
    Policies are those of `learning`, of which the first s + 1 act in session s; `order`: of arrival."""

    def __init__(
        self, config: DictConfig, useful: set[int], failing: set[int], tasks: int, learning: str = "a", order: int = 0
    ) -> None:
        lines = [json.dumps({"id": str(i), "prompt": "p", "data": {}}) for i in range(tasks)]
        Path(config.data.train_files).write_text("\n".join(lines))
        self.config, self.useful, self.failing, self.step = config, useful, failing, 0
        self.algorithm, self.declared, self.past = algorithm("grpo"), frozenset(("team",)), None
        self.memory = AdvantageMemory(self.algorithm)
        self.policies = SimpleNamespace(
            learning={*learning},
            sleep=lambda: None,
            values=lambda rows: None,
            update=lambda rows, learnt, targets: ({}, learnt.keys),
        )
        self.team, self.arrivals, self.store, self.phase = learning, Random(order), MemoryStore(), nullcontext
        self.data, self.recording = TaskData(config.data, True, lambda step, position: True), dict[str, Any]()
        self.marl = marl_of(config)
        self.filter = self.marl.sampler.filters
        self.rounds: list[list[int]] = []

    def sample(self, tasks: Sequence[TaskRow], step: int) -> list[Report]:
        """Of one worker, whose rows are in another order than their keys."""
        assert step == self.step
        numbers = [int(json.loads(task["task"])["id"]) for task in tasks]
        self.rounds.append(numbers)
        reports = []
        for task, number in zip(tasks, numbers, strict=True):
            rows: list[dict[str, Any]] = []
            if number not in self.failing:
                rows = [
                    row(task["uid"], s, i, float(s if number in self.useful else 1), agent=name, policy=name)
                    for s in range(EPISODES)
                    for i, name in enumerate(self.team[: s + 1])
                ]
            self.arrivals.shuffle(rows)
            table_rows = decode(list[TableRow], [{**row, "tag": {**row, "response_len": 2}} for row in rows], "rows")
            reports.append(Report("", str(number), successes=[True] * bool(rows), rows=table_rows))
        self.arrivals.shuffle(reports)
        return reports

    def keep(self, reports: list[Report]) -> None: ...

    def stored(self, table: RowTable, result: AdvantageResult) -> tuple[dict[str, float], Signal | None]:
        return {}, self.signal(table, result)

    advantages, signal = loop.Trainer.advantages, loop.Trainer.signal

    def sampled(self) -> tuple[list[list[int]], RowTable | None]:
        """(the tasks of each round, the rows) of the next step; None if all tasks failed."""
        self.rounds, self.step = [], self.step + 1
        try:
            batch, table, _ = Synchronous(self).sample()
        except MarlError:
            return self.rounds, None
        assert batch.keys == table.keys() == sorted(batch.keys)
        assert [f"{tag['uid']}_{tag['session']}_{tag['index']}" for tag in batch.tags] == batch.keys
        return self.rounds, table


def choices(folder: Path, batch: int = 4, refill: int = 2, **data: Any) -> DictConfig:
    marl = {"sampler": {"filter": {"refill": refill}}, "data": data, "schedule": {"mode": "sync"}}
    files = {f"{part}_files": str(folder / "tasks.jsonl") for part in ("train", "val")}
    order = {"train_batch_size": batch, "shuffle": True, "seed": 5, "dataloader_num_workers": 0}
    return OmegaConf.create({"marl": marl, "data": {**files, **order}})


def test_policies_that_learn_in_turn_learn_the_same_in_any_order_of_arrival(tmp_path: Path) -> None:
    """A task counts if it teaches a policy whose turn it is: policy c never acts, so that its turn is refilled."""
    config = choices(tmp_path, batch=2, refill=1)
    config.marl.schedule.turns = [["c"], ["a"], ["b"]]

    def learnt(order: int) -> list[Any]:
        trainer, steps = Trainer(config, set(range(10)), set(), 10, "ab", order), list[Any]()
        trainer.algorithm = algorithm("grpo", credit="efficiency")
        for trainer.step in range(1, 4):
            trainer.rounds = []
            _, keys = Synchronous(trainer).step({})
            advantages = {key: row["advantages"].tolist() for key, row in sorted(trainer.store.rows.items())}
            steps.append((len(trainer.rounds), keys, advantages))
        return steps

    first = learnt(0)
    assert [rounds for rounds, _, _ in first] == [2, 1, 1]
    assert [{key[-2:] for key in keys} for _, keys, _ in first] == [set(), {"_0"}, {"_1"}]
    assert all(learnt(order) == first for order in range(1, 5))


@settings(max_examples=25, deadline=None)
@given(
    useful=st.sets(st.integers(0, 19)),
    failing=st.sets(st.integers(0, 19), max_size=4),
    batch=st.integers(1, 5),
    refill=st.integers(0, 3),
    tasks=st.integers(5, 20),
)
def test_a_batch_is_filled_or_the_limit_is_reached_and_no_task_is_sampled_twice(
    tmp_path_factory: pytest.TempPathFactory, useful: set[int], failing: set[int], batch: int, refill: int, tasks: int
) -> None:
    config = choices(tmp_path_factory.getbasetemp(), batch, refill)
    useful, failing = (numbers & set(range(tasks)) for numbers in (useful, failing))
    trainer, again = (Trainer(config, useful, failing, tasks) for _ in range(2))
    for step in range(1, 5):
        rounds, table = trainer.sampled()
        assert len(rounds[0]) == batch
        assert len(rounds) <= 1 + refill
        drawn = [task for played in rounds for task in played]
        assert max(Counter(drawn).values()) == 1
        count, seen = 0, 0
        for number, played in enumerate(rounds, 1):
            count, seen = count + len((useful - failing) & set(played)), seen + len(played)
            if number < len(rounds):  # exactly what is missing is sampled
                assert len(rounds[number]) == min(batch - count, tasks - seen)
        assert count == batch or len(rounds) == 1 + refill or len(drawn) == tasks
        uids = [] if table is None else list(table.uid.names)
        assert uids == [f"s{step}t{i:05d}" for i, task in enumerate(drawn) if task not in failing]
        signal = None if table is None else trainer.signal(table, computed(table))
        assert (len(signal.tasks) if signal else 0) == count
        assert again.sampled()[0] == rounds  # the same seed draws the same tasks
        if step == 2:  # another run continues at the same position of the data
            again = Trainer(config, useful, failing, tasks)
            again.step = step
            again.data.loader.load_state_dict(trainer.data.loader.state_dict())


rates = st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=1, max_size=12)


def curriculum(given_rates: Sequence[float | None], seed: int = 0, **options: Any) -> Curriculum:
    chosen = marl_of(OmegaConf.create({"marl": {"data": {"curriculum": options}}})).data.curriculum
    assert chosen is not None
    found = Curriculum(chosen, [f"task-{i}" for i in range(len(given_rates))], seed)
    found.rates[:] = [np.nan if rate is None else rate for rate in given_rates]
    return found


@given(rates, st.integers(0, 99), st.data())
def test_draws_are_different_tasks_the_same_for_a_seed_and_survive_a_checkpoint(
    tmp_path_factory: pytest.TempPathFactory, given_rates: list[float | None], seed: int, data: st.DataObject
) -> None:
    one = curriculum(given_rates, seed)
    count = data.draw(st.integers(1, len(given_rates)))
    first = one.draw(3, count)
    assert sorted([*first, *one.draw(3, len(given_rates), first)]) == list(range(len(given_rates)))
    folder = tmp_path_factory.mktemp("checkpoint") / "curriculum"
    one.save(folder, 3)
    two = curriculum([None] * len(given_rates), seed)
    two.load(folder)
    assert np.array_equal(one.rates, two.rates, equal_nan=True)
    assert two.draw(3, count) == first


def test_a_rate_is_measured_with_a_memory(tmp_path: Path) -> None:
    subject = curriculum([None, None, 0.5], memory=0.75, hard=0.3, easy=0.6)
    assert subject.pools().tolist() == [0, 0, 2]
    outcomes = [("task-0", [True, False]), ("task-2", [True] * 4), ("task-1", [])]
    subject.record([SimpleNamespace(task=task, successes=found) for task, found in outcomes])
    assert subject.rates[[0, 2]].tolist() == [0.5, 0.75 * 0.5 + 0.25]
    assert np.isnan(subject.rates[1])
    assert subject.pools().tolist() == [2, 0, 3]
    subject.save(tmp_path / "curriculum", 7)
    saved = json.loads((tmp_path / "curriculum" / FILE).read_text())
    assert saved == {"step": 7, "tasks": {"task-0": {"rate": 0.5}, "task-2": {"rate": 0.625}}}
    counts = subject.metrics()
    assert [counts[f"curriculum/tasks/{pool}"] for pool in ("new", "hard", "medium", "easy")] == [1, 0, 1, 1]


@pytest.mark.parametrize(("above", "below", "teaching"), [(None, 0.8, {0, 1}), (0.2, 0.8, {1})])
def test_groups_teach_within_a_range_of_means(above: float | None, below: float | None, teaching: set[int]) -> None:
    """Mean rewards are 0.1, 0.5 and 0.85; a bound itself is not within the range."""
    groups = [(0.0, 0.2), (0.0, 1.0), (0.7, 1.0)]
    table = RowTable.from_rows([row(f"s1t{t}", s, 0, r) for t, group in enumerate(groups) for s, r in enumerate(group)])
    signal = Signal.of(table, computed(table), {"a"}, Filter(above=above, below=below))
    assert signal.tasks == {f"s1t{t}" for t in teaching}
