"""Check the properties that every advantage estimator and algorithm must have; example in docs/plugins.md."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Literal

import numpy as np

from marl_verl import Algorithm, Turn
from marl_verl.algo.advantage import AdvantageResult, Estimator, FloatArray, IntArray, RowTable
from marl_verl_testing.given import SECONDS, must, same_elsewhere, time_limit

Row = Mapping[str, Any]
Reach = Literal["group", "task", "batch"]

OTHERS = (-7.0, 2.5)  # replacement rewards for rows that must not matter
ORDERS = 3  # of the rows, beside the given one
MOST_GROUPS = 8  # maximum number of groups for which this is checked, chosen by the seed


def check_algorithm(
    algorithm: Algorithm | Estimator,
    rows: Sequence[Row],
    *,
    reach: Reach = "group",
    seed: int = 0,
) -> AdvantageResult:
    """Assert the required properties of an algorithm's advantages on these rows; call it from a test.

    It asserts that

        every scale is above 0
        groups match `group_by`: two rows share a group if and only if they agree in these columns
        permuting the rows permutes all numbers, bit for bit
        the numbers do not depend on the hash seed, which changes the order of sets
        a row depends on no row outside its `reach`, neither on its rewards nor on its presence (rows of a tree are
            removed by whole tasks only)

    Suitable rows: several tasks, episodes of uneven length, groups of one and of several rows, different rewards. Use
    random rows of `marl_verl_testing.rows`, or rows of your workflow, `[row_of(turn) for turn in sample.turns]` with
    the sample that `check_sampler` returns.

    Args:
        algorithm: an estimator is used with the sum of all reward components.
        rows: as for `RowTable.from_rows`.
        reach: the rows on which the advantage of a row may depend: its group; its task, for returns that sum the turns
            of a session across groups; "batch": all rows, nothing is asserted.

    Returns the advantages; your test must check their values.
    """
    if isinstance(algorithm, Estimator):
        algorithm = Algorithm(advantage=algorithm)
    with time_limit("check_algorithm", SECONDS):
        check = _Check(algorithm, [dict(row) for row in rows], Random(seed))
        must((check.result.scale > 0).all(), f"the scale is not above 0: {check.result.scale}")
        check.groups()
        for _ in range(ORDERS):
            check.permuted()
        if reach != "batch":
            check.outside(reach)
        same_elsewhere(check.lines, check.lines(), f"the result of {algorithm.advantage.described}")
        return check.result


def row_of(turn: Turn) -> dict[str, Any]:
    """A sampled turn as a row of `RowTable.from_rows`."""
    return RowTable.of([turn]).to_rows()[0]


class _Check:
    """One check: the rows, their advantages, and variants to compute again."""

    def __init__(self, algorithm: Algorithm, rows: list[dict[str, Any]], random: Random) -> None:
        self.algorithm, self.rows, self.random = algorithm, rows, random
        # the components of a run with these rows: those of any row, and those that the mix requires; a group may have
        # none of them, such as that of an agent without a role reward
        table = RowTable.from_rows(rows)
        team = () if np.isnan(table.team_reward).all() else ("team",)
        self.declared = frozenset((*table.present, *team, *algorithm.rewards.required()))
        self.table = RowTable.from_rows(rows, self.declared)
        self.result = algorithm.compute(self.table)

    def again(self, rows: Sequence[Row]) -> AdvantageResult:
        return self.algorithm.compute(RowTable.from_rows(rows, self.declared))

    def lines(self) -> list[str]:
        return [f"{name}: {values.tolist()}" for name, values in _numbers(self.again(self.rows)).items()]

    def groups(self) -> None:
        roles = [str(self.table.value("agent", row)) for row in range(len(self.rows))]
        columns = [self.result.roles.get(role, self.result.group_by) for role in roles]
        keys = [tuple((name, self.table.value(name, row)) for name in names) for row, names in enumerate(columns)]
        by_key: dict[Any, list[int]] = {}
        for row, key in enumerate(keys):
            by_key.setdefault(key, []).append(row)
        for row, key in enumerate(keys):
            members = self.result.members(row).tolist()
            message = f"is compared with {self.named(members)}; those that agree in {columns[row]} are"
            must(members == by_key[key], f"{self.named([row])} {message} {self.named(by_key[key])}")

    def permuted(self) -> None:
        order = self.random.sample(range(len(self.rows)), len(self.rows))
        again = self.again([self.rows[row] for row in order])
        self.same(again, np.argsort(order), np.arange(len(self.rows)), "with the rows in another order")

    def outside(self, reach: Reach) -> None:
        tree = any(row.get("parent") is not None for row in self.rows)
        tasks = np.array([row["uid"] for row in self.rows])
        groups = sorted(set(self.result.group.tolist()))
        for group in self.random.sample(groups, min(MOST_GROUPS, len(groups))):
            mine = np.flatnonzero(self.result.group == group)
            near = np.isin(tasks, tasks[mine])
            inside = np.isin(np.arange(len(tasks)), mine) if reach == "group" else near
            for value in OTHERS:
                changed = [dict(row) for row in self.rows]
                for row in (changed[place] for place in np.flatnonzero(~inside)):
                    row["rewards"] = dict.fromkeys(row["rewards"], value)
                    row["team_reward"] = None if row.get("team_reward") is None else value
                again = self.again(changed)
                self.same(again, mine, mine, f"with rewards of rows outside its {reach} changed to {value}")
            there = np.flatnonzero(near if tree else inside)  # a tree without a node's parent is invalid
            again = self.again([self.rows[row] for row in there])
            self.same(again, np.searchsorted(there, mine), mine, f"without rows outside its {reach}")

    def same(self, again: AdvantageResult, at: IntArray, rows: IntArray, when: str) -> None:
        """The numbers of `again` at the indices `at` equal those of `rows`."""
        before, after = _numbers(self.result), _numbers(again)
        must(list(before) == list(after), f"there are {list(before)}, and {when} {list(after)}")
        for name, values in before.items():
            message = f"`{name}` of {self.named(rows.tolist())}, and {when}"
            np.testing.assert_array_equal(values[rows], after[name][at], message)

    def named(self, rows: list[int]) -> str:
        return ("row " if len(rows) == 1 else "rows ") + ", ".join(self.table.key(row) for row in rows)


def _numbers(result: AdvantageResult) -> dict[str, FloatArray]:
    """Name -> numbers of a result: those of the equation, the stages, and a critic's target."""
    names = ("advantage", "ret", "reward", "baseline", "scale", "weight", "target")
    numbers = {name: getattr(result, name) for name in names}
    numbers |= {f"stage {place} ({what})": values for place, (what, values) in enumerate(result.stages)}
    if result.tokens is not None:  # a number that changes with each value and with their order
        numbers["tokens"] = np.array([values @ np.arange(1.0, len(values) + 1) for values in result.tokens])
    return {name: values for name, values in numbers.items() if values is not None}
