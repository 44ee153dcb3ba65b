"""The filter of groups, refills and the curriculum: which tasks a step samples, and which rows it trains on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from marl_verl.algo.advantage import AdvantageResult, RowTable
from marl_verl.algo.algorithms import Algorithm
from marl_verl.config import schema
from marl_verl.config.task_choice import (
    check_task_choice,
    curriculum_of,
    filter_of,
)
from marl_verl.errors import MarlError
from marl_verl.testing.rows import algorithm
from marl_verl.trainer.curriculum import FILE, Curriculum
from marl_verl.trainer.filtering import Signal

EPISODES = 2
COMPONENTS = frozenset(("team",))


def row(uid: str, session: int, index: int, reward: float, **own: Any) -> dict[str, Any]:
    """The agent is the policy."""
    identity = {"uid": uid, "session": session, "index": index, "turn": 0, "agent": "a", "policy": "a", "slot": "0"}
    place = {"node": None, "parent": None, "obs": "o", "invalid": False, "length": 2}
    return {**identity, **place, "rewards": {"team": reward}, "team_reward": None, **own}


def computed(table: RowTable, name: str = "grpo", **options: Any) -> AdvantageResult:
    return algorithm(name, **options).compute(table)


# -- the filter --------------------------------------------------------------------------------------------------


def test_rows_of_groups_without_variance_are_not_trained_on() -> None:
    rows = [row("s1t0", s, 0, reward=1.0) for s in range(2)] + [row("s1t1", s, 0, reward=s) for s in range(2)]
    table = RowTable.from_rows(rows)
    signal = Signal.of(table, computed(table), {"a"})
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
    by_agent = Signal.of(table, computed(table, group="agent"), set(agents))
    assert (by_agent.rows, by_agent.tasks, by_agent.dropped_groups) == ([0, 2], {"s1t0"}, 1)
    assert Signal.of(table, computed(table, group="task"), set(agents)).rows == [0, 1, 2, 3]
    frozen = Signal.of(table, computed(table, group="agent"), {"b"})
    assert (frozen.rows, frozen.tasks, frozen.dropped_groups) == ([], frozenset(), 1)


@pytest.mark.parametrize(
    ("above", "below", "teaching"), [(0.2, None, {1, 2}), (None, 0.8, {0, 1}), (0.2, 0.8, {1}), (0.5, 0.9, {2})]
)
def test_groups_teach_within_a_range_of_mean_rewards(
    above: float | None, below: float | None, teaching: set[int]
) -> None:
    """Mean rewards are 0.1, 0.5 and 0.85; a bound itself is not within the range."""
    groups = [(0.0, 0.2), (0.0, 1.0), (0.7, 1.0)]
    table = RowTable.from_rows([row(f"s1t{t}", s, 0, r) for t, group in enumerate(groups) for s, r in enumerate(group)])
    signal = Signal.of(table, computed(table), {"a"}, above, below)
    assert signal.tasks == {f"s1t{t}" for t in teaching}


def test_siblings_of_a_tree_are_a_group() -> None:
    rows = [
        row("s1t0", 0, 0, 0.0, node="0", parent=None),
        row("s1t0", 0, 1, 1.0, node="1", parent=None),
        row("s1t0", 0, 2, 0.5, node="1.0", parent="1"),
        row("s1t0", 0, 3, 0.5, node="1.1", parent="1"),
    ]
    table = RowTable.from_rows(rows)
    assert Signal.of(table, computed(table, group="siblings"), {"a"}).rows == [0, 1]


@given(st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=4), min_size=1, max_size=6))
def test_what_is_dropped_has_no_gradient_and_nothing_else_is_dropped(rewards: list[list[int]]) -> None:
    rows = [row(f"s1t{t}", s, 0, r / 3) for t, group in enumerate(rewards) for s, r in enumerate(group)]
    table = RowTable.from_rows(rows)
    found = computed(table)
    signal = Signal.of(table, found, {"a"})
    assert signal.tasks == {f"s1t{t}" for t, group in enumerate(rewards) if len(set(group)) > 1}
    dropped = np.setdiff1d(np.arange(len(rows)), signal.rows)
    assert not found.advantage[dropped].any()
    assert signal.dropped_rows == len(dropped)


# -- refills -----------------------------------------------------------------------------------------------------


class Stack:
    """A trainer with a scripted rollout: the episodes of a task in `useful` differ, those in `failing` have no rows."""

    def __init__(self, folder: Path, config: DictConfig, useful: set[int], failing: set[int], tasks: int) -> None:
        from marl_verl.tasks.dataset import TaskDataset
        from marl_verl.trainer.team_trainer import TeamTrainer
        from verl.utils import tensordict_utils as tu

        from marl_verl.trainer.memory import AdvantageMemory

        stack = self
        self.sampled: list[list[int]] = []  # per round

        class Trainer(TeamTrainer):
            def __init__(self) -> None:
                self.config, self.global_steps = config, 1
                self.filter, self.curriculum, self.past = filter_of(config), None, None
                self.algorithm: Algorithm = algorithm("grpo")
                self.memory = AdvantageMemory(self.algorithm)
                self.policies: Any = SimpleNamespace(learning={"a"}, sleep=lambda: None)
                self.records: Any = SimpleNamespace(
                    keeps=lambda step, position: True, journals=lambda step, reports: None
                )
                self.agent_loop_manager = SimpleNamespace(generate_sequences=self._submit, collect=self._collect)
                self.train_dataset = TaskDataset(str(folder / "train.jsonl"), None, None, None)
                self.train_dataloader_it: Iterator[Any] | None = None
                self._loader()

            def _loader(self) -> None:
                from torchdata.stateful_dataloader import StatefulDataLoader
                from verl.trainer.ppo.utils import create_rl_sampler
                from verl.utils.dataset.rl_dataset import collate_fn

                self.train_dataloader = StatefulDataLoader(
                    dataset=self.train_dataset,
                    batch_size=1,
                    num_workers=0,
                    drop_last=True,
                    collate_fn=collate_fn,
                    sampler=create_rl_sampler(self.config.data, self.train_dataset),
                )

            def _submit(self, batch: Any) -> None:
                self.batch = batch
                assert tu.get_non_tensor_data(batch, "global_steps", None) == self.global_steps
                stack.sampled.append([int(json.loads(task)["id"]) for task in batch["task"]])

            def _collect(self) -> list[Any]:
                """Of one worker, whose rows are in another order than their keys."""
                rows, reports = [], []
                for task, uid in zip(self.batch["task"], self.batch["uid"], strict=True):
                    number = int(json.loads(task)["id"])
                    if number not in failing:
                        rows += [row(uid, s, 0, float(s if number in useful else 1)) for s in range(EPISODES)]
                    reports.append(SimpleNamespace(task=str(number), successes=[True] * (number not in failing)))
                keys = [f"{each['uid']}_{each['session']}_0" for each in rows]
                table = RowTable.from_rows(rows[::-1], COMPONENTS) if rows else None
                return [SimpleNamespace(reports=reports, keys=keys[::-1], tags=rows[::-1], table=table)]

        folder.mkdir(exist_ok=True, parents=True)
        lines = [json.dumps({"id": str(i), "prompt": "p", "data": {}}) for i in range(tasks)]
        (folder / "train.jsonl").write_text("\n".join(lines))
        self.trainer = Trainer()

    def step(self) -> tuple[list[list[int]], RowTable | None]:
        """(the tasks of each round, the rows) of the next step; None if all tasks failed."""
        self.sampled, step = [], self.trainer.global_steps
        try:
            batch, table = self.trainer.sample()
        except MarlError:
            self.trainer.global_steps = step + 1
            return self.sampled, None
        assert batch.keys == table.keys() == sorted(batch.keys)
        assert [f"{tag['uid']}_{tag['session']}_{tag['index']}" for tag in batch.tags] == batch.keys
        self.trainer.global_steps += 1
        return self.sampled, table


def choices(batch: int = 4, refill: int = 2, mode: str = "sync", **data: Any) -> DictConfig:
    marl = {"sampler": {"filter": {"refill": refill}}, "data": data, "schedule": {"mode": mode}}
    return OmegaConf.create({"marl": marl, "data": {"train_batch_size": batch, "shuffle": True, "seed": 5}})


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
    folder = tmp_path_factory.getbasetemp() / "refill"
    useful, failing = (numbers & set(range(tasks)) for numbers in (useful, failing))
    stack, again = (Stack(folder, choices(batch, refill), useful, failing, tasks) for _ in range(2))
    for step in range(1, 5):
        rounds, table = stack.step()
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
        signal = None if table is None else stack.trainer.signal(table, computed(table))
        assert (len(signal.tasks) if signal else 0) == count
        assert again.step()[0] == rounds  # the same seed draws the same tasks
        if step == 2:  # another run continues at the same position of the data
            again = Stack(folder, choices(batch, refill), useful, failing, tasks)
            again.trainer.global_steps = 3
            again.trainer.train_dataloader.load_state_dict(stack.trainer.train_dataloader.state_dict())


def test_a_curriculum_draws_the_refills_too(tmp_path: Path) -> None:
    stack = Stack(tmp_path, choices(batch=4, refill=2), useful={1, 2}, failing={3}, tasks=12)
    curriculum = stack.trainer.curriculum = Curriculum(schema.Curriculum(), [str(i) for i in range(12)], seed=1)
    rounds, _ = stack.step()
    drawn = [task for tasks in rounds for task in tasks]
    assert max(Counter(drawn).values()) == 1
    assert set(np.flatnonzero(curriculum.episodes)) == set(drawn) - {3}
    assert sum(curriculum.metrics()[f"curriculum/drawn/{pool}"] for pool in ("new", "easy")) == len(drawn)


# -- the curriculum ----------------------------------------------------------------------------------------------

rates = st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=1, max_size=12)


def curriculum(given_rates: Sequence[float | None], seed: int = 0, **options: Any) -> Curriculum:
    section = {"marl": {"data": {"curriculum": options}}}
    chosen = curriculum_of(OmegaConf.create(section))
    assert chosen is not None
    found = Curriculum(chosen, [f"task-{i}" for i in range(len(given_rates))], seed)
    found.rates[:] = [np.nan if rate is None else rate for rate in given_rates]
    found.episodes[:] = [0 if rate is None else 4 for rate in given_rates]
    return found


@given(rates, st.integers(0, 99), st.data())
def test_draws_are_different_tasks_the_same_for_a_seed_and_survive_a_checkpoint(
    tmp_path_factory: pytest.TempPathFactory, given_rates: list[float | None], seed: int, data: st.DataObject
) -> None:
    one = curriculum(given_rates, seed)
    count = data.draw(st.integers(1, len(given_rates)))
    first = one.draw(3, count)
    rest = one.draw(3, len(given_rates), first)
    assert sorted([*first, *rest]) == list(range(len(given_rates)))
    folder = tmp_path_factory.mktemp("checkpoint") / "curriculum"
    one.save(folder, 3)
    two = curriculum([None] * len(given_rates), seed)
    two.load(folder)
    assert np.array_equal(one.rates, two.rates, equal_nan=True)
    assert (one.episodes == two.episodes).all()
    assert two.draw(3, count) == first


def test_tasks_are_drawn_by_the_weight_of_their_pool() -> None:
    given_rates = [None] * 5 + [0.1] * 5 + [0.5] * 5 + [1.0] * 5
    weights = {"new": 1, "hard": 2, "medium": 4, "easy": 0}
    subject = curriculum(given_rates, weights=weights)
    firsts = Counter(subject.draw(step, 1)[0] // 5 for step in range(4000))
    assert firsts[3] == 0
    for pool, weight in enumerate((1, 2, 4)):
        assert firsts[pool] / 4000 == pytest.approx(weight / 7, abs=0.035)
    everything = subject.draw(1, 20)
    assert {number // 5 for number in everything[-5:]} == {3}  # weight 0: when no others remain


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
    assert saved == {
        "step": 7,
        "tasks": {"task-0": {"episodes": 2, "rate": 0.5}, "task-2": {"episodes": 8, "rate": 0.625}},
    }
    subject.draw(8, 2)
    counts = subject.metrics()
    assert [counts[f"curriculum/tasks/{pool}"] for pool in ("new", "hard", "medium", "easy")] == [1, 0, 1, 1]
    assert sum(counts[f"curriculum/drawn/{pool}"] for pool in ("new", "hard", "medium", "easy")) == 2


# -- the dry run -------------------------------------------------------------------------------------------------


def test_settings_that_do_not_go_together() -> None:
    grpo = algorithm("grpo")
    check_task_choice(choices(mode="async"), grpo)
    for check, message in (
        (
            lambda: check_task_choice(choices(), algorithm("ippo")),
            "'marl.sampler.filter' has no effect, because the advantages come from a critic",
        ),
        (
            lambda: check_task_choice(choices(mode="async", curriculum={}), grpo),
            "'marl.data.curriculum' requires marl.schedule.mode=sync",
        ),
    ):
        with pytest.raises(MarlError) as error:
            check()
        assert message in str(error.value)
