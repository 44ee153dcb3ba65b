"""What a backend does for the training loop: it plays tasks, keeps the rows, computes with the policies, updates them.

    rollouts.sample(tasks)       act: token ids in, token ids out with log-probs and the version of the weights
    store.put / get / remove     the tensors of rows; a row of the loop is its key and its tag
    policies.update(rows)        each trained policy learns from its own rows; critics: `values`, then `update`
    policies.sync(versions)      the next actions come from the newest weights
    policies.sleep()             memory of sampling is free until the next sync
    part.save / load             a policy's or critic's part of a checkpoint

`backend/verl/` is Ray, vLLM and TransferQueue, `backend/local/` one process. The loop imports neither.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch

from marl_verl.algo.advantage.rows import TableRow
from marl_verl.algo.sampling import Failure


class TurnCount(NamedTuple):
    """What metrics count of a turn: its tokens, those that it reads from other agents (`episode.communication`),
    whether the workflow marked it as invalid, and whether it was cut off at its length limit."""

    agent: str
    tokens: int
    read: float
    invalid: bool
    cut_off: bool


@dataclass
class Report:
    """The outcome of one task for the driver, in addition to its rows."""

    uid: str
    task: str
    attempts: int = 0  # number of attempts, failures included
    extra_tokens: dict[str, int] = field(default_factory=dict)  # purpose -> sampled tokens that are in no row
    answer_seconds: list[float] = field(default_factory=list)  # per episode: of all its acts, a joint move as one
    successes: list[bool] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)  # of its episodes, without the task set's scale and shift
    outcomes: list[dict[str, float]] = field(default_factory=list)  # per episode: side -> its score, if there are sides
    rewards: list[dict[str, dict[str, float]]] = field(default_factory=list)  # per episode: agent -> component -> mean
    measures: list[dict[str, float]] = field(default_factory=list)  # per episode: `TaskSet.measures`
    turns: list[TurnCount] = field(default_factory=list)  # of its episodes
    set: str | None = None  # the public set of the task, if its data names one
    failures: list[Failure] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)  # episodes and failures to store, as JSON
    metrics: dict[str, float] = field(default_factory=dict)  # of the algorithm's own metrics
    written: dict[str, Any] = field(default_factory=dict)  # for the states of `StatefulRollouts`
    error: str | None = None  # message if the sampler itself failed


Column: TypeAlias = "torch.Tensor | Sequence[torch.Tensor]"
"""A field of n rows: a tensor per row, or one nested (jagged) tensor."""
TaskRow: TypeAlias = Mapping[str, Any]
"""A task to play: `task` (JSON), `uid`, `keep` (store its episodes), `sampled` in a validation, `states` if any, and a
`journal` with which its episodes begin, if any."""


@dataclass(frozen=True)
class Rows:
    """Rows of a store, in this order: the key of each, and its tag (policy, lengths, version; `rollout/rows.py`)."""

    keys: list[str]
    tags: list[dict[str, Any]]

    def __len__(self) -> int:
        return len(self.keys)

    def part(self, positions: Sequence[int]) -> "Rows":
        """Some of the rows, in this order."""
        return Rows([self.keys[row] for row in positions], [self.tags[row] for row in positions])

    def by_policy(self) -> "dict[str, Rows]":
        """The rows of each policy, in the order of these."""
        positions: dict[str, list[int]] = {}
        for row, tag in enumerate(self.tags):
            positions.setdefault(tag["policy"], []).append(row)
        return {name: self.part(own) for name, own in positions.items()}


@dataclass(frozen=True)
class Done:
    """Finished tasks: their reports and rows. A validation has no rows.

    The tensors of rows of trained policies are in the store. `records` has the rows of the row table.
    """

    reports: list[Report]
    rows: Rows
    records: list[TableRow]


class RowStore(Protocol):
    """The tensors of rows, by key and field."""

    def put(self, keys: Sequence[str], fields: Mapping[str, Column]) -> None:
        """Write fields of rows, new or known; a field that a row has is replaced."""

    def get(self, keys: Sequence[str], names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Read fields of rows, each as one nested tensor [n, ragged]. An error if a row lacks one."""

    def remove(self, keys: Sequence[str]) -> None:
        """Forget rows; unknown keys are ignored."""


class Rollouts(Protocol):
    """Plays tasks with the policies and writes the rows of trained ones into the store."""

    def sample(self, tasks: Sequence[TaskRow], step: int, validate: bool = False) -> list[Done]:
        """Play tasks and wait for all. `step` is part of their seeds; a validation has no rows."""

    def assign(self, policies: Mapping[str, str]) -> None:
        """Let agents act with other policies from the next task on; agent -> policy. No task may be in flight."""


class Stream(Rollouts, Protocol):
    """Rollouts of the asynchronous schedule: single tasks, and gates that hold requests while weights change."""

    def dispatch(self, tasks: Sequence[TaskRow], step: int) -> None:
        """Begin tasks without waiting. A validation may run while they are in flight."""

    def waiting(self) -> list[Future[Done]]:
        """Futures of which one is done when a task is finished."""

    def finished(self) -> list[Done]:
        """Finished tasks, without waiting."""

    def close_gate(self, policy: str) -> None:
        """Hold requests of a policy, and wait until none is in flight."""

    def open_gate(self, policy: str) -> None:
        """Release the requests of a policy."""
