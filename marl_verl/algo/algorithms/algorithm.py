"""An algorithm is composed of five parts: sampler, reward mix, credit, advantage estimator and policy loss."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from marl_verl.algo.advantage.columns import FloatArray, IntArray, first_true, numbers_of
from marl_verl.algo.advantage.estimator import Estimator, Memory
from marl_verl.algo.advantage.part import Find, PartField, changed, check_known, flat, replaced
from marl_verl.algo.advantage.result import AdvantageResult
from marl_verl.algo.advantage.rows import RowTable
from marl_verl.algo.credit.base import Credit, CreditField, ReplayCredit, TableCredit
from marl_verl.algo.rewards.mix import RewardMix, check_finite
from marl_verl.algo.sampling import Sample
from marl_verl.errors import MarlError, shown
from marl_verl.options import check_type
from marl_verl.team import AgentConfig

NAMES = ("sampler", "loss")
"""Parts that are registered names, resolved by the rollout worker and the trainer."""
LISTS = ("metrics", "columns")
"""Lists of registered names."""
PARTS = {"rewards": "", "credit": "credit_", "advantage": ""}
"""Part -> prefix of its options."""


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """A method for training a team.

    Every part is a name or an object: `Algorithm(advantage="group-in-group", rewards=Mix(team=1.0))`. Sampler, loss and
    metrics are names only, since each process of a run resolves them.

    The options are the names of the parts and, flat, the fields of the parts: `returns`, `gamma`, `group`, ...; those
    of the credit have the prefix `credit_`. Two parts with an option of the same name are an error.

    Attributes:
        sampler: registered sampler.
        rewards: mix, reward components -> reward; "weights" sums all components.
        credit: computed from the rows, or by replaying episodes while sampling; "none" for no credit. A list of credits
            is applied in order; the options of each then begin with `credit_NAME_`.
        advantage: reward -> advantage.
        loss: registered loss.
        metrics: registered metrics that a run reports in addition to the default ones.
        columns: registered column functions, which add numbers to every turn (`RowTable.column`).
    """

    sampler: str = "independent"
    rewards: PartField[RewardMix] = PartField("mixes", "weights")
    credit: CreditField = CreditField("credits", "none")
    advantage: PartField[Estimator] = PartField("advantages", "advantage")
    loss: str = "ppo-clip"
    metrics: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in NAMES:
            if not isinstance(getattr(self, name), str):
                raise MarlError(f"'{name}' must be a registered name, got {getattr(self, name)!r:.80}")
        for name in LISTS:
            if isinstance(given := getattr(self, name), str):
                raise MarlError(f"'{name}' must be a list of names, got {given!r}. Write ({given!r},).")
        seen = dict.fromkeys((*NAMES, *PARTS, *LISTS), "the algorithm")
        for part in PARTS:
            for name in self._flat(part):
                if name in seen:
                    raise MarlError(f"option '{name}' is in {seen[name]} and in {part}: rename one")
                seen[name] = part

    def options(self) -> dict[str, Any]:
        """Every option with its value, flat, as a run logs and stores it."""
        found: dict[str, Any] = {"sampler": self.sampler}
        for name in PARTS:
            part = getattr(self, name)
            names = [each.name for each in _each(part)]
            found |= {name: names[0] if len(names) == 1 else names, **self._flat(name)}
        return {**found, "loss": self.loss, **{name: list(getattr(self, name)) for name in LISTS}}

    def describe(self) -> str:
        """Every option in one line for the log, group columns first: "group (uid, turn, agent), sampler ..."."""
        shown = []
        options = {name: value for name, value in self.options().items() if name != "columns" or value}
        for name, value in sorted(options.items(), key=lambda option: option[0] != "group"):
            shown.append(f"{name} ({', '.join(map(str, value))})" if isinstance(value, list) else f"{name} {value}")
        return ", ".join(shown)

    def with_options(
        self, options: Mapping[str, Any] | None, where: str = "algorithm", find: Find | None = None
    ) -> Algorithm:
        """A copy with some options changed, as given in config.

        Args:
            options: option -> value; lists are accepted for tuples, null keeps the algorithm's sampler or loss.
            where: config key of the options, e.g. "marl.algorithm.options", as a prefix of error messages.
            find: resolves the names of parts; None for the core's names only.

        Raises:
            MarlError: unknown option or part (with the nearest name), wrong type, or a value that the part rejects.
        """
        given = {name: value for name, value in (options or {}).items() if name not in NAMES or value is not None}
        for name in given:
            if not isinstance(name, str):
                raise MarlError(f"option {name!r} in '{where}' is not a text")
        kinds: dict[str, Any] = {**dict.fromkeys((*NAMES, *PARTS), str), **dict.fromkeys(LISTS, list | tuple)}
        for name, kind in {**kinds, "credit": str | list | tuple}.items():
            if name in given:
                check_type(given[name], kind, f"{where}.{name}")
        new: dict[str, Any] = {name: given.get(name, getattr(self, name)) for name in NAMES}
        new |= {name: tuple(given.get(name, getattr(self, name))) for name in LISTS}
        for name, prefix in PARTS.items():
            old = {each.name: each for each in _each(getattr(self, name))}
            wanted = given.get(name, list(old))
            parts = []
            for each, its in _prefixes([wanted] if isinstance(wanted, str) else list(wanted), prefix):
                check_type(each, str, f"{where}.{name}")
                part = replaced(old.get(each, next(iter(old.values()))), each, find, f"{where}.{name}")
                mine = {option.removeprefix(its): value for option, value in given.items() if option.startswith(its)}
                parts.append(changed(part, mine, find, f"{where}.{its}" if its else where))
            new[name] = parts[0] if len(parts) == 1 else parts
        algorithm = dataclasses.replace(self, **new)
        check_known(given, algorithm.options(), where)
        return algorithm

    def compute(self, table: RowTable) -> AdvantageResult:
        """Compute the advantage of every row: credit, mix the components, estimate advantages.

        Padding rows get 0 and enter no statistic, nor do rows of untrained agents (`RowTable.untrained`). Permuting the
        rows permutes the result bit for bit.

        Raises:
            MarlError: no row besides padding; a NaN or infinite reward (with component, row and task); a missing
                component or group column; a parent that is not a node; rewards too large for float64 statistics.
        """
        rows, real, reward = self._mixed(table)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # raised below, with the row
            compared = real.compared
            trained = real.take(compared)
            result = self.advantage.compute(trained, reward[compared])
            result = _checked(result, trained, self.advantage.described).beside(compared, reward)
        _finite(result.scale, real, "scale")  # an infinite scale would silently make the advantage 0
        _finite(result.advantage, real, "advantage")
        return result.scatter(rows, len(table))

    def recall(self, table: RowTable, memory: Memory) -> tuple[RowTable, Memory]:
        """The table with the columns that the advantage computes from earlier steps, and the memory after this step.

        The same table if the advantage does not remember. MarlError as in `compute`, or for a number of the memory
        that is not finite.
        """
        if not self.advantage.remembers:
            return table, memory
        rows, real, reward = self._mixed(table)
        compared = real.compared
        columns, after = self.advantage.recall(real.take(compared), reward[compared], memory)
        for name, value in after.items():
            if not np.isfinite(value):
                raise MarlError(f"the memory '{name}' of advantage '{self.advantage.name}' is {value}")
        found = {name: np.full(len(table), np.nan) for name in columns}
        for name, values in columns.items():
            found[name][rows[compared]] = numbers_of(
                values, len(compared), f"column '{name}' of '{self.advantage.name}'"
            )
        return table.with_columns(found), after

    def _mixed(self, table: RowTable) -> tuple[IntArray, RowTable, FloatArray]:
        """The rows that are not padding, in order; their table with the credit; and their mixed reward."""
        rows = table.order()
        if not len(rows):
            raise MarlError("there are no rows besides padding. An advantage needs at least one.")
        real = table.take(rows)
        check_finite(real)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # raised below, with the row
            real = self.credited(real).setting_aside(self.advantage.consumed())
            if (real.parent.codes >= 0).any():
                _ = real.tree  # raises for a parent that is not a node, even if no part uses the tree
            reward = numbers_of(self.rewards.compute(real), len(real), self.rewards.described)
        _finite(reward, real, "mixed reward")
        return rows, real, reward

    def components(self, agents: Mapping[str, AgentConfig]) -> frozenset[str]:
        """The reward components that a run sets while sampling."""
        credits = (credit.component for credit in self.replay_credits)
        return self.rewards.components(agents).union(credits, self.advantage.score_parts())

    @property
    def replay_credits(self) -> tuple[ReplayCredit, ...]:
        """The credits that replay episodes in the rollout worker, in order."""
        return tuple(credit for credit in self.credit.each if isinstance(credit, ReplayCredit))

    def credited(self, table: RowTable) -> RowTable:
        """The `placed` table with the component of a credit that is computed from rows; itself if it has it already.
        `table` has no padding and is sorted by key. Training makes it once, for advantages and metrics."""
        if table.credited:
            return table
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # `compute` raises, with the row
            return dataclasses.replace(self.credit.apply(self.placed(table)), credited=True)

    def placed(self, table: RowTable) -> RowTable:
        """The table with the team reward of each episode as component "team" of its rows `Estimator.team_rows`, and 0
        on its other rows."""
        if np.isnan(table.team_reward).all():
            return table
        real = np.flatnonzero(~table.padding)
        compared = real[table.take(real).compared]
        counts = np.zeros(len(table), dtype=np.bool_)
        for rows in (compared, np.setdiff1d(real, compared)):  # turns of untrained agents are not those of the others
            if len(rows):
                counts[rows] = self.advantage.team_rows(table.take(rows))
        return table.with_team(counts)

    def _flat(self, part: str) -> dict[str, Any]:
        each = _each(getattr(self, part))
        prefixes = [prefix for _, prefix in _prefixes([one.name for one in each], PARTS[part])]
        options = [(prefix, flat(one)) for prefix, one in zip(prefixes, each, strict=True)]
        return {prefix + name: option for prefix, its in options for name, option in its.items()}


def _each(part: Any) -> tuple[Any, ...]:
    """The parts of a field: one, or several credits."""
    return part.each if isinstance(part, Credit) else (part,)


def _prefixes(names: Sequence[str], prefix: str) -> list[tuple[str, str]]:
    """(name, prefix of its options); several credits have one each, since their options may have the same names."""
    if len(names) < 2:
        return [(name, prefix) for name in names]
    return [(name, f"{prefix}{str(name).replace('-', '_')}_") for name in names]


def step_document(
    name: str, algorithm: Algorithm, table: RowTable, result: AdvantageResult, step: int
) -> dict[str, Any]:
    """The document of a step that a run stores and `marl-verl explain` reads; `explain` recomputes `result` from it."""
    computed = {credit.component for credit in algorithm.credit.each if isinstance(credit, TableCredit)}
    return {
        "algorithm": name,
        "options": algorithm.options(),
        "step": step,
        "components": sorted(table.declared),
        "rows": algorithm.placed(table).without(computed).to_rows(),
        "advantage": result.advantage.tolist(),
        **({} if result.tokens is None else {"tokens": [values.tolist() for values in result.tokens]}),
    }


@dataclasses.dataclass(frozen=True)
class Metric:
    """Base of metrics; override one or both methods.

    An algorithm names its metrics (`Algorithm.metrics`); `marl.algorithm.options.metrics: [amplification]` sets others.
    The values are written to metrics.jsonl under the names that the methods return.
    """

    def of_rows(self, table: RowTable, result: AdvantageResult) -> Mapping[str, float]:
        """Metrics of a step, from all of its rows and their advantages; padding rows have `result.group` -1.

        Called in the driver process, after the advantages of a step are computed.
        """
        return {}

    def of_sample(self, sample: Sample) -> Mapping[str, float]:
        """Metrics of one task, from its sample (including texts); a step reports their mean over its tasks.

        Called in the rollout worker's process. A task without a name does not enter the mean of that name.
        """
        return {}


def _checked(result: Any, table: RowTable, what: str) -> AdvantageResult:
    """The result of an estimator, with one number per row and no scale of 0. MarlError for anything else."""
    if not isinstance(result, AdvantageResult):
        example = "return AdvantageResult.of(ret, reward, baseline, scale, group, sample, group_by)"
        raise MarlError(f"{what} must return an AdvantageResult, got {shown(result)}. Write `{example}`.")
    for name in ("advantage", "ret", "reward", "baseline", "scale", "group", "sample"):
        numbers_of(getattr(result, name), len(table), f"'{name}' of {what}")
    if result.weight is not None:
        weight = numbers_of(result.weight, len(table), f"'weight' of {what}")
        if (row := first_true(~(np.isfinite(weight) & (weight >= 0)))) is not None:
            raise MarlError(
                f"{what} returns weight {weight[row]} for row '{table.key(row)}'. A weight is finite and at least 0."
            )
    if result.tokens is not None:
        if len(result.tokens) != len(table):
            raise MarlError(f"{what} returns advantages of tokens for {len(result.tokens)} rows of {len(table)}")
        for row, (values, length) in enumerate(zip(result.tokens, table.length, strict=True)):
            if len(values) != length or not np.isfinite(values).all():
                got = f"{shown(values.tolist())} for the {length} tokens of row '{table.key(row)}'"
                raise MarlError(f"{what} returns {got}. Return one finite number per response token.")
    if (row := first_true(result.scale == 0)) is not None:
        raise MarlError(f"{what} returns scale 0 for row '{table.key(row)}'. Return 1 where nothing is scaled.")
    return result


def _finite(values: FloatArray, table: RowTable, what: str) -> None:
    if (row := first_true(~np.isfinite(values))) is not None:
        message = f"the {what} of row '{table.key(row)}' is {values[row]}"
        raise MarlError(f"{message}. The rewards are too large or too far apart for float64.")
