"""What a backend does for the training loop: it plays tasks, keeps the rows, computes with the policies, updates them.

    rollouts.sample(tasks)       act: token ids in, token ids out with log-probs and the version of the weights
    rollouts.assign(policies)    agents act with other policies from the next task on; none may be in flight
    store.put / get / remove     the tensors of rows; a row of the loop is its key and its tag
    policies.update(rows)        each trained policy learns from its own rows; critics: `values`, then `update`
    policies.sync(versions)      the next actions come from the newest weights
    policies.sleep()             memory of sampling is free until the next sync
    part.save / load             a policy's or critic's part of a checkpoint

`backend/verl/` is Ray, vLLM and TransferQueue; another one is an entry point of a distribution (`extensions.py`). The
loop imports none.
"""

import errno
import re
import sys
import traceback
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, TypeAlias

from omegaconf import OmegaConf

from marl_verl.algo.advantage.rows import TableRow
from marl_verl.algo.sampling import Failure
from marl_verl.config.stored import team_of
from marl_verl.errors import MarlError, after_notes, format_error
from marl_verl.events import Phases, emit
from marl_verl.extensions import extension
from marl_verl.team import Endpoint, PolicyConfig

if TYPE_CHECKING:  # torch is imported while Ray starts
    import torch

Column: TypeAlias = "torch.Tensor | Sequence[torch.Tensor]"
"""A field of n rows: a tensor per row, or one nested (jagged) tensor."""
TaskRow: TypeAlias = Mapping[str, Any]
"""A task to play: `task` (JSON), `uid`, `keep` (store its episodes), `sampled` in a validation, `states` if any, and a
`journal` with which its episodes begin, if any."""
OUT_OF_MEMORY = (
    "out of memory, killed by Ray; lower actor.ppo_max_token_len_per_gpu, "
    "rollout.engine_kwargs.vllm.kv_cache_memory_bytes (servers on a CPU) or data.train_batch_size, or let agents share "
    "a policy"
)


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
    """A finished task, for the driver. The tensors of rows of trained policies are in the store."""

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
    written: dict[str, Any] = field(default_factory=dict)  # for the states of `Trainer.sample`
    error: str | None = None  # message if the sampler itself failed
    rows: list[TableRow] = field(default_factory=list)  # none of a validation

    @property
    def measured(self) -> list[dict[str, float]]:
        """The measures of its episodes; one without any for a task whose attempts all failed."""
        return self.measures if self.successes else [{}]


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

    def with_shared(self, policies: Container[str]) -> "Rows":
        """The rows, each followed by those that some other policies learn from it (`Sampler.shared`)."""
        rows = dict[str, dict[str, Any]]()
        for key, tag in zip(self.keys, self.tags, strict=True):
            rows[key] = tag
            rows |= {other: copy for other, copy in tag.get("shared", {}).items() if copy["policy"] in policies}
        return Rows([*rows], [*rows.values()])

    def by_policy(self) -> "dict[str, Rows]":
        """The rows of each policy, in the order of these."""
        positions: dict[str, list[int]] = {}
        for row, tag in enumerate(self.tags):
            positions.setdefault(tag["policy"], []).append(row)
        return {name: self.part(own) for name, own in positions.items()}


class RowStore(Protocol):
    """The tensors of rows, by key and field."""

    def put(self, keys: Sequence[str], fields: Mapping[str, Column]) -> None:
        """Write fields of rows, new or known; a field that a row has is replaced."""

    def get(self, keys: Sequence[str], names: Sequence[str]) -> "dict[str, torch.Tensor]":
        """Read fields of rows, each as one nested tensor [n, ragged]. An error if a row lacks one."""

    def remove(self, keys: Sequence[str]) -> None:
        """Forget rows; unknown keys are ignored."""


class Runtime:
    """What a run has of a policy."""

    def __init__(self, policy: PolicyConfig) -> None:
        self.policy, self.name = policy, policy.name

    def start(self) -> None:
        """Start workers and servers. Endpoints are checked before a run starts anything (`trainer/run.py`)."""

    def client(self) -> Any:
        """What a rollout worker needs to act: a server (`rollout/clients.py`), or the key of an endpoint, which is not
        a variable of a runtime environment: Ray would show it."""
        if self.policy.endpoint is None:
            return None
        return extension("client", "endpoint").endpoint_key(self.name, self.policy.endpoint)

    def sleep(self) -> None:
        """Free the memory of sampling where training needs it."""

    def sync(self, version: int) -> None:
        """Act with the newest weights; every action reports `version` from now on."""


class TrainingWorkers:
    """Training workers with one rank, of this object alone; a backend overrides what is different there."""

    workers: Any
    lock: AbstractContextManager[Any] = nullcontext()
    """Held while the workers belong to this policy or critic: in a pool they may take turns."""

    @property
    def data_parallel_size(self) -> int:
        """Number of data-parallel ranks; each processes a part of the rows."""
        return 1

    def turn(self) -> AbstractContextManager[Any]:
        """The time in which the training workers belong to this policy or critic."""
        return self.lock

    def save(self, folder: Path, step: int) -> None:
        """Write model, optimiser and learning-rate schedule below `folder`; for a policy a Hugging Face folder, too."""
        with self.turn():
            self.workers.save_checkpoint(str(folder), None, step, max_ckpt_to_keep=None)

    def load(self, folder: Path) -> None:
        """Load the files that `save` wrote."""
        with self.turn():
            self.workers.load_checkpoint(local_path=str(folder), del_local_after_load=False)


@dataclass(frozen=True)
class Backend:
    """A backend that has started: its policies and critics, its rollouts, the store of rows."""

    policies: Any  # `Policies`
    rollouts: Any  # `sample` plays tasks and waits; of verl also `workers`, the actors that play them
    store: RowStore


@dataclass(frozen=True)
class Host:
    """The process of the trainer: how to end it at once with an exit code, and how a user continues afterwards."""

    leave: Callable[[int], NoReturn]
    advice: Callable[[], str]


def opened(config: Any, phase: Phases, host: Host) -> AbstractContextManager[Backend]:
    """The backend of a run's resolved config, until the end of the block; `phase`: what the run is doing."""
    return extension("backend", config.marl.run.get("backend") or "verl").opened(config, phase, host)


def tracking_of(config: Any) -> Any:
    """verl's adapter of all trackers of a run (`trainer.logger`), opened."""
    from verl.utils.tracking import Tracking

    names = {"project_name": config.trainer.project_name, "experiment_name": config.trainer.experiment_name}
    content = OmegaConf.to_container(config, resolve=True)
    with redirect_stdout(sys.stderr):  # the log
        return Tracking(**names, default_backend=config.trainer.logger, config=content)


def endpoints(config: Any) -> dict[str, Endpoint]:
    """Policy -> its external endpoint."""
    return {name: policy.endpoint for name, policy in team_of(config).policies.items() if policy.endpoint is not None}


def reported(error: Exception) -> int:
    """Send an error to the command line, after its notes of one line, and write its traceback to the log. Returns the
    exit code."""
    expected = isinstance(error, MarlError)
    emit("error", message=after_notes(error, str(error) if expected else one_line(error)), expected=expected)
    traceback.print_exc()
    return 2 if expected else 1


def one_line(error: BaseException) -> str:
    """One-line message for an unexpected error. The last line of Ray's message is the error in the other process."""
    kinds = {kind.__name__ for kind in type(error).__mro__ if kind.__module__.startswith("ray.")}  # without an import
    if "OutOfMemoryError" in kinds:
        return f"a Ray process died: {OUT_OF_MEMORY}"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        free = "Free some space, or lower marl.checkpoint.keep, marl.run.journal_tasks or marl.run.keep_rows"
        return f"{format_error(error)}: the disk or a quota is full. {free}"
    if "The current node timed out during startup" in str(error):  # of `ray.init`
        return "Ray did not start within 30 s: the machine is too busy. End other programs and start the run again"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "RayActorError" in kinds and not getattr(error, "actor_init_failed", False):
        details = dict(re.findall(r"^\s*(class_name|pid): (\S+)$", str(error), flags=re.MULTILINE))
        which = f" ({details.get('class_name', 'unknown')}, process {details['pid']})" if "pid" in details else ""
        return f"a Ray actor{which} died: killed or out of memory"
    return f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"
