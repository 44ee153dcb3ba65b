"""Advantage estimators and their result. `Advantage` composes returns, overlong penalty, group, baseline and scale."""

import functools
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Gt

from marl_verl.algo.advantage.columns import (
    BoolArray,
    FloatArray,
    IntArray,
    TokenArray,
    combine,
    group_mean,
    numbers_of,
    read_only,
    token_arrays,
)
from marl_verl.algo.advantage.compare import Baseline, Mean, Scale, Unbiased, compare
from marl_verl.algo.advantage.returns import Immediate, Returns, Scope
from marl_verl.algo.advantage.rows import TASK, Group, RowTable, group_ids, sample_ids
from marl_verl.errors import MarlError, check_returned, shown
from marl_verl.options import Part, Positive, Small, parts_of

Memory = Mapping[str, float]
"""What an estimator keeps of earlier steps: names and numbers, stored in checkpoints."""


@dataclass(frozen=True)
class AdvantageResult:
    """Per row [n], float64: advantage = weight * (ret - baseline) / scale. The arrays become read-only."""

    ret: FloatArray  # the return that was compared: the session's mean if a session counts once
    reward: FloatArray  # of the row, after the mix
    baseline: FloatArray
    scale: FloatArray
    group: IntArray  # ids 0..G-1; a row of an untrained agent is alone in its group
    sample: IntArray  # ids; rows of one sample count once
    group_by: tuple[str, ...]  # the columns that define a group
    stages: Sequence[tuple[str, FloatArray]] = ()  # from reward to return: (step, values after it; NaN without it)
    target: FloatArray | None = None  # value target of the critic, if the returns need one
    weight: FloatArray | None = None  # factor of each advantage, see `weighted`; None: all are 1
    # an advantage per response token [length], before the weight, which the update uses in place of the row's, unless
    # it is empty; statistics use that of the row; see `with_tokens`
    tokens: TokenArray | None = None
    # policy -> the advantages with which it learns from the rows of others that a sampler shares with it, [n]
    shared: Mapping[str, FloatArray] = field(default_factory=dict)
    roles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # role -> its columns in place of `group_by`

    def __post_init__(self) -> None:
        read_only(vars(self))

    @functools.cached_property
    def advantage(self) -> FloatArray:
        """[n] weight * (ret - baseline) / scale."""
        advantage: FloatArray = (self.ret - self.baseline) / self.scale
        advantage = advantage if self.weight is None else self.weight * advantage
        read_only(advantage)
        return advantage

    def weighted(self, weight: FloatArray) -> "AdvantageResult":
        """The result with each advantage multiplied by a weight [n], finite and at least 0; weights multiply."""
        return replace(self, weight=weight if self.weight is None else self.weight * weight)

    def with_tokens(self, values: Sequence[Any]) -> "AdvantageResult":
        """The result with a finite advantage per response token: a sequence for each row."""
        return replace(self, tokens=token_arrays(values))

    def of_tokens(self, row: int, length: int) -> FloatArray:
        """[length] the advantages of a row's response tokens, as the update uses them."""
        if self.tokens is None or not len(self.tokens[row]):
            return np.full(length, self.advantage[row])
        tokens: FloatArray = self.tokens[row]
        return tokens if self.weight is None else self.weight[row] * tokens

    def members(self, row: int) -> IntArray:
        """The rows of the group of `row`, ascending."""
        return np.flatnonzero(self.group == self.group[row])

    @staticmethod
    def joined(parts: Sequence[tuple[IntArray, "AdvantageResult"]]) -> "AdvantageResult":
        """The result of n rows from the results of disjoint parts of them, (rows, result); their groups stay apart."""
        n = sum(len(rows) for rows, _ in parts)
        number, columns, stages, shared = np.empty(n, np.int64), dict[str, Any](), dict[str, Any](), dict[str, Any]()
        for place, (rows, result) in enumerate(parts):
            number[rows] = place
            for name in ("ret", "reward", "baseline", "scale", "group", "sample", "target", "tokens", "weight"):
                if (values := getattr(result, name)) is not None:
                    absent = (
                        token_arrays([None] * n) if name == "tokens" else np.full(n, name == "weight", values.dtype)
                    )
                    columns.setdefault(name, absent)[rows] = values
            for stage, values in result.stages:
                stages.setdefault(stage, np.full(n, np.nan))[rows] = values
            for policy, values in result.shared.items():
                shared.setdefault(policy, np.zeros(n))[rows] = values
        columns |= {name: combine([number, columns[name]], n) for name in ("group", "sample")}
        return replace(parts[0][1], **columns, stages=[*stages.items()], shared=shared)

    def spread(self, rows: IntArray, reward: FloatArray) -> "AdvantageResult":
        """The same result for a table of n rows with a `reward` [n], of which those in `rows` were compared; each other
        one is alone in its group: R is the reward, the advantage 0."""
        others = np.delete(np.arange(len(reward)), rows)
        ret, ones, alone = reward[others], np.ones(len(others)), np.arange(len(others))
        rest = AdvantageResult(ret, ret, ret, ones, alone, alone, (), [(name, ret) for name, _ in self.stages])
        return replace(self.joined([(rows, self), (others, rest)]), reward=reward)


@dataclass(frozen=True)
class Rows:
    """Properties of a sampler's rows."""

    tree: bool = False  # turns have siblings, parents and children
    crossed: bool = False  # a row can be at several nodes
    incremental: bool = False  # component `team` is what a turn adds to its path
    greedy: bool = False  # they have the reward of a greedy episode as column "greedy"


class Estimator(Part):
    """Base of advantage estimators; `returns` computes the return R from rewards."""

    kind: ClassVar[str] = "advantage"
    no_tree: ClassVar[str | None] = None  # why rows must not be of trees; None: they may be
    returns: Returns = Immediate()

    def consumed(self) -> tuple[str, ...]:
        """Reward components that the estimator reads itself; they are excluded from the sum of all components."""
        return ()

    def score_parts(self) -> tuple[str, ...]:
        """Parts of the task's score (`DetailedScore`) that a run sets as reward components of every turn."""
        return ()

    def team_rows(self, table: RowTable) -> BoolArray:
        """[n] bool, the rows that get the team reward of their episode: those of the returns."""
        return self.returns.team_rows(table)

    def wants_critic(self) -> Scope | None:
        """The critic that it needs and computes targets for (`AdvantageResult.target`), or None."""
        return None

    def incompatibility(self, rows: Rows) -> str | None:
        """Why the estimator is incompatible with such rows; None if it is compatible."""
        return self.no_tree if rows.tree else None

    @property
    def remembers(self) -> bool:
        """Whether advantages depend on earlier steps, through `recall`."""
        return False

    def recall(self, table: RowTable, reward: FloatArray, memory: Memory) -> tuple[Mapping[str, FloatArray], Memory]:
        """Columns [n] for `compute` (`RowTable.column`) that depend on earlier steps, and the memory after this step.

        Training calls it once a step, before `compute`, with the same arguments, at first with an empty memory. Rows
        without these columns are those of a check or of a document: `compute` must do as in a first step.
        """
        return {}, memory

    @abstractmethod
    def compute(self, table: RowTable, reward: FloatArray) -> AdvantageResult:
        """Compute one advantage per row. `table` is sorted by key; `reward` [n] is finite."""

    def checked(self, table: RowTable, reward: FloatArray) -> AdvantageResult:
        """`compute`. MarlError unless it returns a finite number for each row, and for each token if any."""
        read_only(reward)
        result, label, n = self.compute(table, reward), self.described, len(table)
        check_returned(result, AdvantageResult, f"{label} must return an AdvantageResult")
        numbers = {name: getattr(result, name) for name in ("ret", "reward", "baseline", "scale", "group", "sample")}
        for name, values in numbers.items():
            numbers_of(values, n, f"'{name}' of {label}")
        table.check_finite(result.scale, "scale")  # an infinite scale would silently make the advantage 0
        if result.weight is not None:
            weight = numbers_of(result.weight, n, f"'weight' of {label}")
            table.check(np.isfinite(weight) & (weight >= 0), f"has a weight of {label} that is not 0 or more")
        table.check_finite(
            result.advantage, "advantage", {name: numbers[name] for name in ("ret", "baseline", "scale")}
        )
        for values in result.shared.values():
            table.check_finite(values, "advantage")
        for row, values in enumerate(() if result.tokens is None else result.tokens):
            if len(values) != table.length[row] or not np.isfinite(values).all():
                tokens = f"the {table.length[row]} tokens of row '{table.key(row)}'"
                problem = f"{label} returns {shown(values.tolist())} for {tokens}"
                raise MarlError(f"{problem}: return a finite number for each")
        return result


@dataclass(frozen=True)
class PerRole(Estimator):
    """A = A_role on the rows of one role, computed from these alone; A_others on all other rows, from those alone.

    So a role's groups are its rows of the groups that its estimator declares: what the sampler made, without the acts
    of others. Source: `estimator_map` of rLLM (github.com/rllm-org/rllm), there by the name of a trajectory.

    Attributes:
        role: an agent of the config, which also names the agents that it spawns.
        advantage: the estimator of the role.
        others: that of the other agents; of several roles with one of their own, a `PerRole` again.
    """

    name: ClassVar[str] = "per-role"
    role: str
    advantage: Estimator
    others: Estimator

    def problems(self) -> Iterator[str]:
        """Why the two cannot be computed apart, before a run starts."""
        for part in (*parts_of(self.advantage), *parts_of(self.others)):
            if part.one_side is not None:
                fact = f"{part.kind} '{part.name}' needs the rows of all agents"
                yield f"{fact}, not those of '{self.role}' and of the others apart: {part.one_side}"
            if isinstance(part, Estimator) and part.remembers:
                yield f"advantage '{part.name}' depends on earlier steps, so it must be that of all agents"
        if self.advantage.wants_critic() != self.others.wants_critic():
            yield f"the advantages of '{self.role}' and of the others need different critics: choose two with the same"

    def consumed(self) -> tuple[str, ...]:
        return (*self.advantage.consumed(), *self.others.consumed())

    def score_parts(self) -> tuple[str, ...]:
        return (*self.advantage.score_parts(), *self.others.score_parts())

    def wants_critic(self) -> Scope | None:
        return self.others.wants_critic()

    def incompatibility(self, rows: Rows) -> str | None:
        return self.advantage.incompatibility(rows) or self.others.incompatibility(rows)

    def team_rows(self, table: RowTable) -> BoolArray:
        counts = np.zeros(len(table), dtype=np.bool_)
        for rows, estimator in self._parts(table):
            counts[rows] = estimator.team_rows(table.take(rows))
        return counts

    def compute(self, table: RowTable, reward: FloatArray) -> AdvantageResult:
        parts = [(rows, estimator.checked(table.take(rows), reward[rows])) for rows, estimator in self._parts(table)]
        result = AdvantageResult.joined(parts)
        columns = tuple(dict.fromkeys(("agent", *parts[-1][1].group_by)))
        return result if len(parts) == 1 else replace(result, roles={**result.roles, self.role: columns})

    checked = compute  # of checked parts

    def _parts(self, table: RowTable) -> list[tuple[IntArray, Estimator]]:
        """(rows, their estimator), for those that have rows."""
        mine = np.isin(table.role.codes, [code for code, name in enumerate(table.role.names) if name == self.role])
        parts = (np.flatnonzero(~mine), self.others), (np.flatnonzero(mine), self.advantage)
        return [(rows, estimator) for rows, estimator in parts if len(rows)]


class GroupEstimator(Estimator):
    """Base of estimators that compare returns within groups of rows; `group`: the columns that define a group."""

    group: tuple[str, ...]

    def incompatibility(self, rows: Rows) -> str | None:
        name, sums = f"returns '{self.returns.name}'", self.returns.sums_turns
        if rows.crossed:
            return "its rows can be at several nodes: use advantage 'joint' with joint_mode 'cross'"
        if self.returns.wants_critic() and not self.wants_critic():
            return f"{name} needs a critic, and advantage '{self.name}' trains none: use advantage 'advantage'"
        if rows.tree and self.returns.of == "sessions":
            return f"{name} sums the turns of a session, and turns of a tree have siblings: use tree_mean"
        if not rows.tree and self.returns.of == "trees":
            return f"{name} needs a tree, and these turns have no children: use path_sum"
        if rows.tree and sums and not rows.incremental:
            return f"{name} sums a path, and each of these turns has the full value of its state: use immediate"
        if rows.incremental and not sums:
            return f"{name} uses single turns, and each of these has only its increment to the path: use tree_mean"
        if not rows.tree and (column := {"node", "parent"} & set(self.group)):
            return f"group column '{column.pop()}' needs a tree, and these turns have no parents: use 'turn' or 'agent'"
        return None


@dataclass(frozen=True)
class Overlong:
    """p = -factor min(len - (L - C), C) / C where len > L - C, else 0: from 0 at L - C tokens down to -factor at L.

    Source: MARS2, arXiv 2602.07848 (there after shaping, before normalisation); DAPO, arXiv 2503.14476, equation 13.

    Attributes:
        L: longest response, in tokens.
        C: tokens before L over which the penalty grows.
        factor: the largest penalty.
    """

    L: Positive
    C: Positive
    factor: Annotated[float, Gt(0)] = 1.0

    def compute(self, table: RowTable) -> FloatArray:
        """The penalty of each row [n], between -factor and 0."""
        return -self.factor * np.clip(table.length - (self.L - self.C), 0, self.C) / self.C


@dataclass(frozen=True)
class Advantage(GroupEstimator):
    """A = (R - b_group) / (sigma_group + eps), or A = R - b_group without `norm_by_std`: a row is compared with those
    of its group.

    Attributes:
        returns: computes the return R from rewards.
        overlong: penalty for long responses, added to R before the comparison; None for no penalty.
        sample: "row": every row counts once, so that a long episode outweighs a short one in mean and std.
            "session_mean": the rows of one session in a group count once, with the mean of their returns.
        group: the columns that define a group, e.g. ("uid", "turn", "agent"); () is the whole batch.
        baseline: b.
        norm_by_std: divide by sigma + eps; if false, A = R - b.
        std: sigma, the spread of the group's returns.
        eps: added to sigma. A sigma of 0 counts as 1 if R - b is not 0 (baseline "none", another `scale_group`).
        scale_group: columns of other groups for sigma, which is then the spread of R - b in these groups; () is the
            whole batch, ("agent",) each agent; None: the same groups.
        singleton: advantage of a group of one sample: "zero", "raw" or "batch" (see `compare.compare`).
        session_weight: weigh sessions equally in a loss that averages "tokens" or "rows" (`session_weights`).
    """

    name: ClassVar[str] = "advantage"
    returns: Returns = Immediate()
    overlong: Overlong | None = None
    sample: Literal["row", "session_mean"] = "row"
    group: Group = TASK
    baseline: Baseline = Mean()
    norm_by_std: bool = True
    std: Scale = Unbiased()
    eps: Small = 1e-6
    scale_group: Group | None = None
    singleton: Literal["zero", "raw", "batch"] = "zero"
    session_weight: Literal["tokens", "rows"] | None = None

    def __post_init__(self) -> None:
        if self.sample != "row" and not {*(self.scale_group or ())} <= {*self.group, "uid", "session"}:
            raise MarlError(f"'scale_group' with sample '{self.sample}' can only have columns of 'group'")

    def wants_critic(self) -> Scope | None:
        return self.returns.wants_critic()

    def incompatibility(self, rows: Rows) -> str | None:
        if rows.tree and (self.sample != "row" or self.session_weight):
            return "sample 'session_mean' and 'session_weight' count sessions, and a tree is a single session"
        return super().incompatibility(rows)

    def compute(self, table: RowTable, reward: FloatArray) -> AdvantageResult:
        stages = self.returns.stages(table, reward)
        ret = stages[-1][1]
        read_only(ret)
        target = self.returns.target(table, ret)
        if self.overlong is not None:
            ret = ret + self.overlong.compute(table)
            stages.append(("overlong", ret))
        group = group_ids(table, self.group)
        sample = sample_ids(table, group, self.sample)
        first, value = np.unique(sample, return_index=True)[1], ret
        if self.sample != "row":
            value = group_mean(ret, sample)
            stages.append((f"sample: {self.sample}", value[sample]))
        spread = None if self.scale_group is None else group_ids(table, self.scale_group)[first]
        std = self.std if self.norm_by_std else None
        b, scale = compare(value, group[first], self.baseline, std, self.eps, self.singleton, spread)
        columns = value[sample], reward, b[sample], scale[sample]
        result = AdvantageResult(*columns, group, sample, self.group, stages, target=target)
        return result if not self.session_weight else result.weighted(session_weights(table, self.session_weight))


def session_weights(table: RowTable, unit: str) -> FloatArray:
    """[n] w = (N / S) / n_s: of session s with n_s of its policy's N tokens or rows (`unit`) in S sessions."""
    size = table.length.astype(np.float64) if unit == "tokens" else np.ones(len(table))
    policy = combine([table.policy.codes], len(table))
    session = combine([policy, table.uid.codes, table.session], len(table))
    sessions = np.bincount(policy[np.unique(session, return_index=True)[1]])
    return (np.bincount(policy, size) / sessions)[policy] / np.bincount(session, size)[session]
