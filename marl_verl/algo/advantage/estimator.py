"""Advantage estimators. `Advantage` composes returns, overlong penalty, groups, baseline and scale."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Gt

from marl_verl.algo.advantage.columns import FloatArray, group_mean
from marl_verl.algo.advantage.compare import Baseline, Mean, Scale, Unbiased, compare
from marl_verl.algo.advantage.groups import TASK, Group, group_ids, sample_ids, session_weights
from marl_verl.algo.advantage.result import AdvantageResult
from marl_verl.algo.advantage.returns import Immediate, Returns, Scope
from marl_verl.algo.advantage.rows import RowTable
from marl_verl.errors import MarlError
from marl_verl.options import Part, Positive, Small

Memory = Mapping[str, float]
"""What an estimator keeps of earlier steps: names and numbers, stored in checkpoints."""


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
    returns: Returns = Immediate()

    def consumed(self) -> tuple[str, ...]:
        """Reward components that the estimator reads itself; they are excluded from the sum of all components."""
        return ()

    def score_parts(self) -> tuple[str, ...]:
        """Parts of the task's score (`DetailedScore`) that a run sets as reward components of every turn."""
        return ()

    def wants_critic(self) -> Scope | None:
        """The critic that it needs and computes targets for (`AdvantageResult.target`), or None."""
        return None

    def incompatibility(self, rows: Rows) -> str | None:
        """Why the estimator is incompatible with such rows; None if it is compatible."""
        return None

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
    """A = (R - b_group) / (sigma_group + eps): a row is compared with the rows of its group.

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
        session_weight: weigh sessions equally in a loss that averages "tokens" or "rows" (`groups.session_weights`).
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
