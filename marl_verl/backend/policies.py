"""All policies of a run: their runtimes, which start, update and sync weights."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig

from marl_verl.backend.learning.critic import Critic, Critics
from marl_verl.backend.learning.policy import LearningPolicy
from marl_verl.backend.protocol import Rows, RowStore, Runtime
from marl_verl.team import TeamConfig
from marl_verl.threads import at_once

T = TypeVar("T")


class Policies:
    """The runtimes of a team's policies in the team's order, those that learn (`trained`), and the critics.

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
        self.critics = Critics(config, team, store, self.critic, self.together)
        self.runtimes, sharing = dict[str, Runtime](), list[Any]()  # sharing: those with the same base model
        for name, policy in team.policies.items():
            if policy.external:
                self.runtimes[name] = Runtime(policy)
            elif policy.frozen:
                self.runtimes[name] = self.frozen(policy, config)
            else:
                group = sharing if policy.base is not None and self.shares_base else None
                self.runtimes[name] = self.learner(policy, config, store, self.critics.beside(name), group)
        self.trained = [runtime for runtime in self.runtimes.values() if isinstance(runtime, LearningPolicy)]
        self.learning = {runtime.name for runtime in self.trained}

    def clients(self) -> dict[str, Any]:
        """Policy -> what acts for it (`Runtime.client`)."""
        return {name: runtime.client() for name, runtime in self.runtimes.items()}

    def start(self) -> None:
        self.together({name: runtime.start for name, runtime in self.runtimes.items()})

    def sleep(self) -> None:
        self.together({name: runtime.sleep for name, runtime in self.runtimes.items()})

    def sync(self, versions: Mapping[str, int]) -> None:
        """Act with the newest weights; versions: policy -> the version that its actions report from now on."""
        self._alone_first({name: partial(runtime.sync, versions[name]) for name, runtime in self.runtimes.items()})

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
        updates = {
            policy.name: partial(policy.update, parts[policy.name]) for policy in self.trained if policy.name in parts
        }
        results: dict[str, Any] = self.together(
            {"critics": partial(self.critics.update, batch, targets), "policies": partial(self._alone_first, updates)}
        )
        metrics: dict[str, float] = results["critics"]
        used = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if tag["policy"] in self.learning]
        for name, (rows, values) in results["policies"].items():
            metrics |= {f"policy/{name}/{key}": value for key, value in values.items()}
            used += rows.keys  # also padding
        return metrics, list(dict.fromkeys(used))

    def _alone_first(self, calls: Mapping[str, Callable[[], T]]) -> dict[str, T]:
        """Call the functions of the `alone` policies one after another, then those of the others at once."""
        results = {name: call() for name, call in calls.items() if name in self.alone}
        return results | self.together({name: call for name, call in calls.items() if name not in self.alone})
