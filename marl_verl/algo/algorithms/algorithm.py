"""An algorithm is composed of five parts: sampler, reward mix, credit, advantage estimator and policy loss."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from marl_verl.algo.advantage.columns import FloatArray, IntArray, first_true, numbers_of
from marl_verl.algo.advantage.estimator import Advantage, Estimator, Memory
from marl_verl.algo.advantage.result import AdvantageResult
from marl_verl.algo.advantage.rows import RowTable
from marl_verl.algo.credit.base import Credit, ReplayCredit, TableCredit
from marl_verl.algo.rewards.mix import Mix, RewardMix, check_finite
from marl_verl.algo.sampling import Sample
from marl_verl.algo.sampling.base import ColumnFunction
from marl_verl.errors import MarlError, shown
from marl_verl.options import Find, Part, changed, check_options, config_of
from marl_verl.team import AgentConfig


@dataclasses.dataclass(frozen=True)
class Metric(Part):
    """Base of metrics; override one or both methods.

    The values are written to metrics.jsonl under the names that the methods return.
    """

    kind: ClassVar[str] = "metric"

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


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """A method for training a team: `Algorithm(rewards=Mix(team=1.0), advantage=Advantage(group=AGENT))`.

    The options of a recipe (`marl.algorithm.options`) are its attributes, and those of its parts below them.

    Attributes:
        sampler: name of a registered sampler; each process of a run resolves it.
        rewards: mix, reward components -> reward; the default sums all components.
        credit: credits, computed from the rows or by replaying episodes while sampling; applied in order.
        advantage: reward -> advantage.
        loss: name of a registered loss.
        metrics: what a run reports in addition to the default metrics.
        columns: functions that add numbers to every turn (`RowTable.column`).

    Raises:
        MarlError: an attribute of another type, or two credits that set one component.
    """

    sampler: str = "independent"
    rewards: RewardMix = Mix()
    credit: tuple[Credit, ...] = ()
    advantage: Estimator = Advantage()
    loss: str = "ppo-clip"
    metrics: tuple[Metric, ...] = ()
    columns: tuple[ColumnFunction, ...] = ()

    def __post_init__(self) -> None:
        kinds = {"sampler": str, "rewards": RewardMix, "advantage": Estimator, "loss": str}
        values: list[Any] = [(name, getattr(self, name), kind) for name, kind in kinds.items()]
        for name, kind in {"credit": Credit, "metrics": Metric, "columns": Callable}.items():
            listed = getattr(self, name)
            values += [(name, item, kind) for item in listed] if isinstance(listed, tuple) else [(name, listed, tuple)]
        for name, value, kind in values:
            if not isinstance(value, kind):
                raise MarlError(f"'{name}' of an algorithm must be a {kind.__name__}, got {shown(value)}")
            if name == "columns" and "<" in getattr(value, "__qualname__", ""):  # a run stores its path
                raise MarlError(f"'columns' of an algorithm must be functions of a module, got {shown(value)}")
        for part in self.parts():
            check_options(part)
        components = [credit.component for credit in self.replay_credits]
        for component in components:
            if components.count(component) > 1:
                raise MarlError(f"two credits set component '{component}': set another `component` of one of them")

    def options(self) -> dict[str, Any]:
        """Every option with its value, as JSON values that `with_options` reads."""
        options: dict[str, Any] = config_of(self)
        return options

    def parts(self) -> Iterator[Part]:
        """The parts, and the parts of parts."""
        waiting = [self.rewards, *self.credit, self.advantage, *self.metrics]
        for part in waiting:
            yield part
            values = (getattr(part, field.name) for field in dataclasses.fields(part))  # type: ignore[arg-type]
            waiting += [value for value in values if isinstance(value, Part)]

    def describe(self) -> str:
        """Every option in one line for the log, group columns first: "group (uid, turn, agent), sampler ..."."""
        return ", ".join(sorted(_words(self), key=lambda words: not words.startswith("group (")))

    def with_options(
        self, options: Mapping[str, Any] | None, where: str = "algorithm", find: Find | None = None
    ) -> "Algorithm":
        """A copy with some options changed, as given in config.

        Args:
            options: option -> value; null keeps the algorithm's sampler or loss.
            where: config key of the options, e.g. "marl.algorithm.options", as a prefix of error messages.
            find: resolves the names of parts; None for those of the algorithm only.

        Raises:
            MarlError: unknown option or part (with the nearest name), wrong type, or a value that the part rejects.
        """
        kept = {name for name in ("sampler", "loss") if (options or {}).get(name, "") is None}
        return changed(self, {name: value for name, value in (options or {}).items() if name not in kept}, where, find)

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

        The same table if the advantage does not remember. MarlError as in `compute`.
        """
        if not self.advantage.remembers:
            return table, memory
        rows, real, reward = self._mixed(table)
        compared = real.compared
        columns, after = self.advantage.recall(real.take(compared), reward[compared], memory)
        computed = {name: np.full(len(table), np.nan) for name in columns}
        for name, values in columns.items():
            computed[name][rows[compared]] = numbers_of(
                values, len(compared), f"column '{name}' of '{self.advantage.name}'"
            )
        return table.with_columns(computed), after

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
        return tuple(credit for credit in self.credit if isinstance(credit, ReplayCredit))

    def credited(self, table: RowTable) -> RowTable:
        """The `placed` table with the component of a credit that is computed from rows; itself if it has it already.
        `table` has no padding and is sorted by key. Training makes it once, for advantages and metrics."""
        if table.credited:
            return table
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # `compute` raises, with the row
            table = self.placed(table)
            for credit in self.credit:
                table = credit.apply(table)
        return dataclasses.replace(table, credited=True)

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


def _words(part: Any) -> Iterator[str]:
    """Each option with its value, those of a nested part behind its name."""
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        nested = [value] if isinstance(value, Part) else value if isinstance(value, tuple) else []
        for inner in nested:
            if isinstance(inner, Part):
                yield f"{field.name} {inner.name}"
                yield from _words(inner)
        if value not in (None, ()) and not (nested and isinstance(nested[0], Part)):
            plain = config_of(value)
            yield f"{field.name} {'(' + ', '.join(map(str, plain)) + ')' if isinstance(plain, list) else plain}"


def step_document(
    name: str, algorithm: Algorithm, table: RowTable, result: AdvantageResult, step: int
) -> dict[str, Any]:
    """The document of a step that a run stores and `marl-verl explain` reads; `explain` recomputes `result` from it."""
    computed = {credit.component for credit in algorithm.credit if isinstance(credit, TableCredit)}
    return {
        "algorithm": name,
        "options": algorithm.options(),
        "step": step,
        "components": sorted(table.declared),
        "rows": algorithm.placed(table).without(computed).to_rows(),
        "advantage": result.advantage.tolist(),
        **({} if result.tokens is None else {"tokens": [values.tolist() for values in result.tokens]}),
    }


def _checked(result: Any, table: RowTable, what: str) -> AdvantageResult:
    """The result of an estimator, with one number per row and no scale of 0. MarlError for anything else."""
    if not isinstance(result, AdvantageResult):
        example = "return AdvantageResult(ret, reward, baseline, scale, group, sample, group_by)"
        raise MarlError(f"{what} must return an AdvantageResult, got {shown(result)}. Write `{example}`.")
    for name in ("ret", "reward", "baseline", "scale", "group", "sample"):
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
