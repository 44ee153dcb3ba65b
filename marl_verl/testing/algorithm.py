"""A check for advantages and algorithms: what every one of them has to keep to. docs/plugins.md has an example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Literal

import numpy as np

from marl_verl.advantage import AdvantageResult, Estimator, FloatArray, IntArray, RowTable
from marl_verl.advantage.columns import first_true
from marl_verl.algorithms import Algorithm
from marl_verl.errors import MarlError, unknown
from marl_verl.testing.given import instance, must

Row = Mapping[str, Any]
Reach = Literal["group", "task", "batch"]

OTHERS = (-7.0, 2.5)  # what the rewards of rows that must not matter are changed to
MOST_GROUPS = 8  # that are looked at from outside; which, the seed says


def check_algorithm(
    algorithm: Algorithm | Estimator, rows: Sequence[Row], *, reach: Reach = "group", orders: int = 3, seed: int = 0
) -> AdvantageResult:
    """Assert what every algorithm promises of its advantages, on these rows; call it from a test.

    It computes the advantages, and then again with the rows in `orders` other orders, with rows of padding among them,
    and with rewards changed where they must not matter. It asserts that

        every number is finite (also of the stages, and a critic's target), every scale above 0
        A = (ret - baseline) / scale to the bit
        groups are what `group_by` says: two rows share one exactly if they agree in these columns
        permuting the rows permutes all numbers, to the bit
        rows of padding change nothing to the bit, get 0 everywhere, scale 1, and belong to no group
        a row depends on no row outside its `reach`, neither on its rewards nor on its being there (rows of a tree are
            taken away by whole tasks only)

    Rows for it: several tasks, sessions of uneven length, groups of one and of several, rewards that differ. Random
    ones come from `marl_verl.testing.rows`, those of a workflow of yours from `[row_of(turn) for turn in sample.turns]`
    with the sample that `check_sampler` returns.

    Args:
        algorithm: an estimator is taken with the sum of all reward components.
        rows: as `RowTable.from_rows` takes them, without padding.
        reach: what else the advantage of a row may depend on: the rows of its group; those of its task, for returns
            that add up the turns of a session over groups; "batch": all rows, nothing is asserted.
        seed: of orders and of the groups looked at.

    Returns:
        The advantages: what they are is for your test to say.

    Raises:
        AssertionError: which promise is broken, and at which row.
        MarlError: as `Algorithm.compute`; rows of padding; an argument of another kind.
    """
    if reach not in ("group", "task", "batch"):
        raise unknown("reach", reach, ("group", "task", "batch"))
    if isinstance(algorithm, Estimator):
        algorithm = Algorithm(advantage=algorithm)
    instance(algorithm, Algorithm, "an Algorithm(...), or an Estimator such as Advantage(...)")
    if any(row.get("padding") for row in rows):
        raise MarlError("check_algorithm puts rows of padding among yours by itself: leave them out")
    check = _Check(algorithm, [dict(row) for row in rows], Random(seed))
    check.explained()
    check.groups()
    for _ in range(orders):
        check.permuted()
        check.padded()
    if reach != "batch":
        check.outside(reach)
    return check.result


class _Check:
    """One check: the rows, their advantages, and ways to compute them again."""

    def __init__(self, algorithm: Algorithm, rows: list[dict[str, Any]], random: Random) -> None:
        self.algorithm, self.rows, self.random = algorithm, rows, random
        self.table = RowTable.from_rows(rows)
        self.result = algorithm.compute(self.table)

    def explained(self) -> None:
        """Finite, and as the equation says."""
        for name, values in _numbers(self.result).items():
            must(values.shape == (len(self.rows),), f"`{name}` has shape {values.shape}, for {len(self.rows)} rows")
            self.at(np.isfinite(values), f"`{name}` is no finite number", name)
        found = self.result
        self.at(found.scale > 0, "the scale is not above 0", "scale")
        message = "the advantage is not (ret - baseline) / scale; make the result with Advantages.of"
        self.at(found.advantage == (found.ret - found.baseline) / found.scale, message, "advantage")

    def groups(self) -> None:
        """Groups are what `group_by` says."""
        columns = self.result.group_by
        keys = [tuple(self.table.value(column, row) for column in columns) for row in range(len(self.rows))]
        gather_all: dict[Any, list[int]] = {}
        for row, key in enumerate(keys):
            gather_all.setdefault(key, []).append(row)
        for row, key in enumerate(keys):
            members = self.result.members(row).tolist()
            message = f"is compared with {self.named(members)}; those that agree in {columns} are"
            must(members == gather_all[key], f"{self.named([row])} {message} {self.named(gather_all[key])}")

    def permuted(self) -> None:
        """The order of the rows is that of the results."""
        order = self.random.sample(range(len(self.rows)), len(self.rows))
        again = self.algorithm.compute(RowTable.from_rows([self.rows[row] for row in order]))
        self.same(again, np.argsort(order), np.arange(len(self.rows)), "with the rows in another order")

    def padded(self) -> None:
        """Rows that only fill a batch are nobody's business."""
        count = self.random.randint(1, 4)
        real = np.ones(len(self.rows) + count, dtype=np.bool_)
        real[self.random.sample(range(len(real)), count)] = False
        left = iter(self.rows)
        again = self.algorithm.compute(RowTable.from_rows([next(left) if row else self.junk() for row in real]))
        self.same(again, np.flatnonzero(real), np.arange(len(self.rows)), "with rows of padding among them")
        for name, values in _numbers(again).items():
            values = values[~real]
            wanted = 1.0 if name == "scale" else 0.0
            must((values == wanted).all(), f"a row of padding has `{name}` {values[values != wanted]}, not {wanted}")
        must((again.group[~real] == -1).all(), "a row of padding is in a group; its id has to be -1")

    def junk(self) -> dict[str, Any]:
        """A row of padding: half of them have names that no other row has."""
        row = {**_rewarded(self.random.choice(self.rows), float("nan")), "padding": True}
        row["team_reward"] = None if row["team_reward"] is None else OTHERS[0]  # it has to be finite
        if self.random.random() < 0.5:
            row |= {"uid": "padding", "agent": "nobody", "node": "nowhere", "parent": "no node"}
        return row

    def outside(self, reach: Reach) -> None:
        """What is far away may be anything, or not be there."""
        tree = any(row.get("parent") is not None for row in self.rows)
        tasks = np.array([row["uid"] for row in self.rows])
        for group in self.random.sample(found := sorted(set(self.result.group.tolist())), min(MOST_GROUPS, len(found))):
            mine = np.flatnonzero(self.result.group == group)
            near = np.isin(tasks, tasks[mine])
            inside = np.isin(np.arange(len(tasks)), mine) if reach == "group" else near
            for value in OTHERS:
                changed = [row if i else _rewarded(row, value) for row, i in zip(self.rows, inside, strict=True)]
                again = self.algorithm.compute(RowTable.from_rows(changed))
                self.same(again, mine, mine, f"with rewards of rows outside its {reach} changed to {value}")
            there = np.flatnonzero(near if tree else inside)  # without a node's parent there is no tree
            again = self.algorithm.compute(RowTable.from_rows([self.rows[row] for row in there]))
            self.same(again, np.searchsorted(there, mine), mine, f"without rows outside its {reach}")

    def same(self, again: AdvantageResult, at: IntArray, rows: IntArray, when: str) -> None:
        """The numbers of `again` at some places are those of some rows."""
        before, after = _numbers(self.result), _numbers(again)
        must(list(before) == list(after), f"there are {list(before)}, and {when} {list(after)}")
        for name in before:
            old, new = before[name][rows], after[name][at]
            if (one := first_true(old != new)) is not None:
                self.fail(int(rows[one]), f"has {name} {old[one]!r}, and {when} {new[one]!r}")

    def at(self, right: Any, message: str, name: str) -> None:
        """AssertionError that names the first row where it is not right."""
        if (row := first_true(~right)) is not None:
            self.fail(row, f"has {name} {_numbers(self.result)[name][row]!r}: {message}")

    def fail(self, row: int, message: str) -> None:
        raise AssertionError(f"{self.named([row])} (agent '{self.rows[row]['agent']}') {message}")

    def named(self, rows: list[int]) -> str:
        return ("row " if len(rows) == 1 else "rows ") + ", ".join(self.table.key(row) for row in rows)


def _rewarded(row: dict[str, Any], value: float) -> dict[str, Any]:
    """A row with all its rewards changed to a value."""
    team = None if row.get("team_reward") is None else value
    return {**row, "rewards": dict.fromkeys(row["rewards"], value), "team_reward": team}


def _numbers(found: AdvantageResult) -> dict[str, FloatArray]:
    """All numbers of a result, by their names: those of the equation, the stages before it, a critic's target."""
    numbers = {name: getattr(found, name) for name in ("advantage", "ret", "reward", "baseline", "scale")}
    numbers |= {f"stage {place} ({what})": values for place, (what, values) in enumerate(found.stages)}
    return numbers if found.target is None else {**numbers, "target": found.target}
