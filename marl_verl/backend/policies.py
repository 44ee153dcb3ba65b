"""All policies and critics of a run: runtimes that start, estimate values, update and sync weights."""

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import DictConfig

from marl_verl.backend.learning.batches import rows_of_nested
from marl_verl.backend.learning.critic import Critic, check_vocabulary
from marl_verl.backend.learning.policy import LearningPolicy
from marl_verl.backend.protocol import Rows, RowStore, Runtime
from marl_verl.backend.rollout.rows import CUT, JOINT
from marl_verl.errors import noted
from marl_verl.team import TeamConfig
from marl_verl.threads import at_once

T = TypeVar("T")


class Policies:
    """The runtimes of a team's policies in the team's order, those that learn (`trained`), and the critics, by name.

    A backend sets how runtimes and critics are made, from the arguments that `__init__` gives them.
    """

    critic: Callable[..., Critic]
    frozen: Callable[..., Runtime]
    learner: Callable[..., LearningPolicy]
    shares_base = True
    """Whether policies with `base: shared` have one model; otherwise each has a copy, with the same results."""
    together = staticmethod(at_once)
    """How calls to different policies run."""
    alone: Collection[str] = ()
    """Policies that compute one after another, because each uses all cores; the others compute at the same time."""

    def __init__(self, config: DictConfig, team: TeamConfig, store: RowStore) -> None:
        self.store = store
        self.critics = {str(name): self.critic(str(name), config) for name in config.get("critics") or ()}
        for critic in self.critics.values():
            if critic.scope == "policy":
                check_vocabulary(critic, config.policies[critic.policy].actor_rollout_ref.model)
        self.runtimes, sharing = dict[str, Runtime](), list[Any]()  # sharing: those with the same base model
        for name, policy in team.policies.items():
            if policy.external:
                self.runtimes[name] = Runtime(policy)
            elif policy.frozen:
                self.runtimes[name] = self.frozen(policy, config)
            else:
                group = sharing if policy.base is not None and self.shares_base else None
                beside = [critic for critic in self.critics.values() if critic.policy == name]
                self.runtimes[name] = self.learner(policy, config, store, beside, group)
        self.learning = {*team.trained}
        self.trained: list[Any] = [self.runtimes[name] for name in team.trained]
        for student in (runtime for runtime in self.trained if runtime.policy.teacher):
            student.teaching.begin(self.runtimes, config)
        # critic -> rows of a batch, their observations, and the values that it estimated
        self._read: dict[str, tuple[list[int], Sequence[torch.Tensor], NDArray[np.float64]]] = {}

    def clients(self) -> dict[str, Any]:
        """Policy -> what acts for it (`Runtime.client`)."""
        return {name: runtime.client() for name, runtime in self.runtimes.items()}

    def start(self, perform: Callable[..., Any] = operator.call) -> None:
        """Start all runtimes, each by `perform`. An error has a note that names the policy."""

        def begin(name: str, runtime: Runtime) -> None:
            with noted(f"policy '{name}'"):
                runtime.start()

        self.together({name: partial(perform, begin, name, runtime) for name, runtime in self.runtimes.items()})

    def sleep(self) -> None:
        self.together({name: runtime.sleep for name, runtime in self.runtimes.items()})

    def sync(self, versions: Mapping[str, int]) -> None:
        """Act with the newest weights; versions: policy -> the version that its actions report from now on."""
        self._alone_first({name: partial(runtime.sync, versions[name]) for name, runtime in self.runtimes.items()})

    def values(self, batch: Rows) -> NDArray[np.float64] | None:
        """V of each row [n], NaN for rows that no critic reads; None if there are no critics."""
        if not self.critics:
            return None
        values, self._read = np.full(len(batch), np.nan), {}

        def estimate(name: str, critic: Critic) -> None:
            policies = {critic.policy} if critic.scope == "policy" else self.learning
            rows = [row for row, tag in enumerate(batch.tags) if tag["policy"] in policies]
            if rows:
                field = JOINT if critic.scope == "team" else "prompts"
                observations = rows_of_nested(self.store.get([batch.keys[row] for row in rows], [field])[field])
                values[rows] = critic.values(observations)
                self._read[name] = rows, observations, values[rows]

        self.together({name: partial(estimate, name, critic) for name, critic in self.critics.items()})
        return values

    def update(
        self, batch: Rows, learnt: Rows, targets: NDArray[np.float64] | None
    ) -> tuple[dict[str, float], list[str]]:
        """Update each trained policy from its own rows, and every critic.

        Args:
            batch: all rows of a step, whose values the critics have estimated.
            learnt: those that policies learn from.
            targets: of the values of `batch`, [n]; None for no update of critics.

        Returns:
            Metrics `policy/NAME/...` and `critic/NAME/...`, and the keys of the rows in the store that are used up.
        """
        parts = learnt.by_policy()
        learning = [policy for policy in self.trained if policy.name in parts]
        updates = {policy.name: partial(policy.update, parts[policy.name]) for policy in learning}
        critics = {} if targets is None else {name: partial(self._learn, name, batch, targets) for name in self._read}
        results: dict[str, Any] = self.together(
            {"critics": partial(self.together, critics), "policies": partial(self._alone_first, updates)}
        )
        metrics: dict[str, float] = {}
        for name, values in results["critics"].items():
            metrics |= {f"critic/{name}/{key}": value for key, value in values.items()}
        whole = batch.with_shared(self.learning).by_policy().items()
        used = [key for name, rows in whole if name in self.learning for key in rows.keys]
        for name, (rows, values) in results["policies"].items():
            metrics |= {f"policy/{name}/{key}": value for key, value in values.items()}
            used += rows.keys  # also padding
        return metrics, list(dict.fromkeys(used))

    def _learn(self, name: str, batch: Rows, targets: NDArray[np.float64]) -> dict[str, float]:
        """Update a critic from its rows of the batch for which `values` was called. Returns its metrics."""
        critic, (rows, observations, values) = self.critics[name], self._read[name]
        metrics = critic.update(observations, targets[rows], values)
        if critic.scope == "team":
            metrics["cut"] = float(np.mean([batch.tags[row][CUT] for row in rows]))
        return metrics

    def _alone_first(self, calls: Mapping[str, Callable[[], T]]) -> dict[str, T]:
        """Call the functions of the `alone` policies one after another, then those of the others at once."""
        results = {name: call() for name, call in calls.items() if name in self.alone}
        return results | self.together({name: call for name, call in calls.items() if name not in self.alone})
