"""All policies of a run: their runtimes, which start, update and sync weights."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from marl_verl.backend.learning.critic import Critics
from marl_verl.backend.learning.policy import LearningPolicy
from marl_verl.backend.protocol import Rows
from marl_verl.backend.runtime import Runtime
from marl_verl.team import PolicyConfig, TeamConfig
from marl_verl.threads import at_once

T = TypeVar("T")


class Policies:
    """The runtimes of a team's policies in the team's order, those that learn (`trained`), and the critics.

    `alone`: policies that compute one after another, because each uses all cores; the others compute at the same time.
    """

    together = staticmethod(at_once)
    """How calls to different policies run."""

    def __init__(self, runtimes: Mapping[str, Runtime], critics: Critics, alone: Collection[str] = ()) -> None:
        self.runtimes, self.critics, self.alone = dict(runtimes), critics, alone
        self.trained = [runtime for runtime in runtimes.values() if isinstance(runtime, LearningPolicy)]
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
        own = [policy for policy in self.trained if policy.name in parts]
        updates = {policy.name: partial(policy.update, parts[policy.name]) for policy in own}
        calls: dict[str, Callable[[], Any]] = {
            "critics": lambda: self.critics.update(batch, targets),
            "policies": lambda: self._alone_first(updates),
        }
        results = self.together(calls)
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


def runtimes_of(
    team: TeamConfig, frozen: Callable[[PolicyConfig], Runtime], trained: Callable[[PolicyConfig, list[Any]], Runtime]
) -> dict[str, Runtime]:
    """The runtime of each policy, in the order of the team, of these kinds.

    `trained` gets the list of the policies with the same base model before it, which it enters.
    """
    runtimes, sharing = dict[str, Runtime](), list[Any]()
    for name, policy in team.policies.items():
        if policy.external:
            runtimes[name] = Runtime(policy)
        elif policy.frozen:
            runtimes[name] = frozen(policy)
        else:
            runtimes[name] = trained(policy, [] if policy.base is None else sharing)
    return runtimes
