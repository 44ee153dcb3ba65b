"""An algorithm is composed of five parts: sampler, reward mix, credit, advantage estimator and policy loss."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, get_type_hints

import numpy as np
import yaml

from marl_verl.algo.advantage.columns import FloatArray, IntArray, numbers_of
from marl_verl.algo.advantage.estimator import Advantage, AdvantageResult, Estimator, Memory
from marl_verl.algo.advantage.rows import RowTable
from marl_verl.algo.credit import TAKEN, Credit, ReplayCredit, TableCredit
from marl_verl.algo.rewards import Mix, RewardMix
from marl_verl.algo.sampling import Sample
from marl_verl.algo.sampling.sampler import ColumnFunction
from marl_verl.errors import MarlError, user_error
from marl_verl.options import Find, Part, build, check_parts, check_type, config_of, parts_of
from marl_verl.team import AgentConfig

QUIET = np.errstate(over="ignore", invalid="ignore", divide="ignore")
"""NumPy does not warn: `RowTable.check_finite` raises with the row."""


@dataclasses.dataclass(frozen=True)
class Metric(Part):
    """Base of metrics, name -> value in metrics.jsonl; override one or both methods."""

    kind: ClassVar[str] = "metric"

    def of_rows(self, table: RowTable, result: AdvantageResult) -> Mapping[str, float]:
        """Metrics of a step, from all of its rows and their advantages. Called in the driver process."""
        return {}

    def of_sample(self, sample: Sample) -> Mapping[str, float]:
        """Metrics of one task, from its sample (including texts), computed in the rollout worker. A step reports their
        mean over the tasks that have the name."""
        return {}


def add_metrics(values: dict[str, float], metrics: Mapping[str, Any], label: str) -> None:
    """Add the metrics that `label` returned to `values`. MarlError for a name that is there, and for no number."""
    with user_error(f"{label} must return numbers by name", AttributeError, TypeError, ValueError):
        numbers = {name: float(value) for name, value in metrics.items()}
    if taken := sorted(numbers.keys() & values.keys()):
        raise MarlError(f"{label} returns '{taken[0]}', which is the name of another metric: rename it")
    values |= numbers


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """A method for training a team: `Algorithm(rewards=Mix(team=1.0), advantage=Advantage(group=AGENT))`.

    The options of a recipe (`marl.algorithm.options`) are its attributes, and those of its parts below them.
    """

    sampler: str = "independent"  # a registered name, as the loss
    rewards: RewardMix = Mix()  # reward components -> reward
    credit: tuple[Credit, ...] = ()  # applied in order: computed from the rows, or by replays while sampling
    advantage: Estimator = Advantage()  # reward -> advantage
    loss: str = "ppo-clip"
    metrics: tuple[Metric, ...] = ()  # beside those of every run
    columns: tuple[ColumnFunction, ...] = ()  # add numbers to every turn (`RowTable.column`)

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(Algorithm).items():
            check_type(getattr(self, name), hint, name)
        for part in self.parts():
            check_parts(part)
        components = [credit.component for credit in self.credit if isinstance(credit, TableCredit | ReplayCredit)]
        if taken := [component for component in components if component in TAKEN]:
            raise MarlError(f"a credit sets component '{taken[0]}', which is set while sampling: rename `component`")
        if twice := [component for component in components if components.count(component) > 1]:
            raise MarlError(f"two credits set component '{twice[0]}': set another `component` of one of them")

    def options(self) -> dict[str, Any]:
        """Every option with its value, as JSON values that `with_options` reads."""
        return config_of(self)

    def parts(self) -> Iterator[Part]:
        """The parts, and the parts of parts."""
        for part in (self.rewards, *self.credit, self.advantage, *self.metrics):
            yield from parts_of(part)

    def describe(self) -> str:
        """The options in one line for the log, as in a recipe, with short names of parts."""
        line = yaml.safe_dump(self.options(), default_flow_style=True, sort_keys=False, width=math.inf).strip()
        for part in self.parts():
            line = line.replace(f"'{part.path}'", part.name)
        return line

    def with_options(
        self, options: Mapping[str, Any] | None, where: str = "algorithm", find: Find | None = None
    ) -> "Algorithm":
        """A copy with some options changed, as `options.changed`; null keeps the algorithm's sampler or loss."""
        kept = {name for name in ("sampler", "loss") if (options or {}).get(name, "") is None}
        chosen = {name: value for name, value in (options or {}).items() if name not in kept}
        return build(Algorithm, chosen, where, find, self)

    @QUIET
    def compute(self, table: RowTable) -> AdvantageResult:
        """Compute the advantage of every row: credit, mix the components, estimate advantages.

        Rows of untrained agents (`RowTable.untrained`) enter no statistic. Permuting the rows permutes the result bit
        for bit. MarlError: a row lacks what a part needs, or a number is not finite.
        """
        order, rows, reward = self._mixed(table)
        compared = rows.compared
        result = self.advantage.checked(rows.take(compared), reward[compared])
        return result.spread(order[compared], reward[np.argsort(order)])

    @QUIET
    def recall(self, table: RowTable, memory: Memory) -> tuple[RowTable, Memory]:
        """The table with the columns that the advantage computes from earlier steps, and the memory after this step."""
        if not self.advantage.remembers:
            return table, memory
        order, rows, reward = self._mixed(table)
        compared = rows.compared
        columns, after = self.advantage.recall(rows.take(compared), reward[compared], memory)
        numbers = {**table.numbers, **{name: np.full(len(table), np.nan) for name in columns}}
        for name, values in columns.items():
            numbers[name][order[compared]] = values
        return dataclasses.replace(table, numbers=numbers), after

    def _mixed(self, table: RowTable) -> tuple[IntArray, RowTable, FloatArray]:
        """The order of the rows by key; and in this order the table with its credits, and its mixed reward."""
        consumed = frozenset(self.advantage.consumed()).union(*(credit.consumed() for credit in self.credit))
        order = table.order()
        table = dataclasses.replace(self.credited(table.take(order)), own=consumed)
        reward = numbers_of(self.rewards.compute(table), len(table), self.rewards.described)
        table.check_finite(reward, "mixed reward", table.rewards)
        return order, table, reward

    def components(self, agents: Mapping[str, AgentConfig]) -> frozenset[str]:
        """The reward components that a run sets while sampling."""
        credits = (credit.component for credit in self.replay_credits)
        return self.rewards.components(agents).union(credits, self.advantage.score_parts())

    @property
    def replay_credits(self) -> tuple[ReplayCredit, ...]:
        """The credits that replay episodes in the rollout worker, in order."""
        return tuple(credit for credit in self.credit if isinstance(credit, ReplayCredit))

    @QUIET
    def credited(self, table: RowTable) -> RowTable:
        """The `placed` table, sorted by key, with the components of the credits that are computed from rows."""
        table = self.placed(table)
        for credit in self.credit:
            if isinstance(credit, TableCredit):
                values = numbers_of(credit.compute(table), len(table), credit.described)
                table = table.with_component(credit.component, values)
        return table

    def placed(self, table: RowTable) -> RowTable:
        """The table with each episode's team reward as component "team" of `Returns.team_rows`, 0 on its other rows."""
        if np.isnan(table.team_reward).all():
            return table
        compared = table.compared
        counts = np.zeros(len(table), dtype=np.bool_)
        for rows in (compared, np.setdiff1d(np.arange(len(table)), compared)):  # untrained agents are by themselves
            if len(rows):
                counts[rows] = self.advantage.team_rows(table.take(rows))
        return table.with_team(counts)


def step_document(
    name: str, algorithm: Algorithm, table: RowTable, result: AdvantageResult, step: int
) -> dict[str, Any]:
    """The document of a step that a run stores and `marl-verl explain` reads; `explain` recomputes `result` from it."""
    return {
        "algorithm": name,
        "options": algorithm.options(),
        "step": step,
        "components": sorted(table.declared),
        "rows": algorithm.placed(table).to_rows(),
        "advantage": result.advantage.tolist(),
        **({} if result.tokens is None else {"tokens": [values.tolist() for values in result.tokens]}),
    }
