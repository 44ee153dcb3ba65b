"""All policies of a run: their runtimes, which start, update and sync weights concurrently."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf, open_dict
from transfer_queue import KVBatchMeta

from marl_verl.backend.verl.batches import by_policy
from marl_verl.backend.verl.critic import Critics
from marl_verl.backend.verl.policy_runtime import PolicyRuntime
from marl_verl.backend.verl.policy_servers import FrozenRuntime, PastRuntime, Runtime
from marl_verl.backend.verl.rollout.devices import Devices
from marl_verl.backend.verl.shared_runtime import SharedRuntime
from marl_verl.config.hardware import cpu_run
from marl_verl.config.model_settings import uses_all_cores
from marl_verl.config.placement import pools_of
from marl_verl.team import TeamConfig
from marl_verl.threads import at_once

T = TypeVar("T")


class Policies:
    """The runtimes of a team's policies in the team's order, those that learn (`trained`), and the critics."""

    def __init__(self, config: DictConfig, team: TeamConfig) -> None:
        devices: dict[str, Devices] = {}
        for pool in pools_of(config, team):
            # colocated policies on a CPU need no lock: there is no device memory to run out of
            devices |= dict.fromkeys(pool.policies, Devices(pool, serial=pool.shared and not cpu_run()))
        self.critics = Critics(config, team, devices)
        self.runtimes: dict[str, Runtime] = {}
        sharing: list[SharedRuntime] = []
        for name, policy in team.policies.items():
            if policy.external:
                self.runtimes[name] = Runtime(policy)
            elif policy.frozen:
                kind = FrozenRuntime if policy.past is None else PastRuntime
                self.runtimes[name] = kind(policy, _config_of(config, name), devices[name])
            else:
                place = policy, _config_of(config, name), devices[name], self.critics.colocated(name)
                self.runtimes[name] = PolicyRuntime(*place) if policy.base is None else SharedRuntime(*place, sharing)
        self.trained = [runtime for runtime in self.runtimes.values() if isinstance(runtime, PolicyRuntime)]
        self.learning = {runtime.name for runtime in self.trained}
        models = {runtime.name: runtime.config.actor_rollout_ref.model.path for runtime in self.trained}
        # read from the files of the weights here, not in every step
        self.alone = {name for name, model in models.items() if uses_all_cores(model)}

    @property
    def early_clients(self) -> bool:
        """Whether the clients of all policies exist before the servers are up."""
        return all(runtime.early for runtime in self.runtimes.values())

    def clients(self) -> dict[str, Any]:
        return {name: runtime.client() for name, runtime in self.runtimes.items()}

    def actors(self) -> dict[str, Any]:
        return {label: actor for runtime in self.runtimes.values() for label, actor in runtime.actors().items()}

    def start(self) -> None:
        at_once({name: runtime.start for name, runtime in self.runtimes.items()})

    def sleep(self) -> None:
        """Put servers to sleep that share a GPU with training."""
        at_once({name: runtime.sleep for name, runtime in self.runtimes.items()})

    def sync_weights(self, versions: dict[str, int]) -> None:
        """Wake up the servers with the newest weights; versions: policy -> the version that they report from now on."""
        self._alone_first(
            {name: partial(runtime.sync_weights, versions[name]) for name, runtime in self.runtimes.items()}
        )

    def update(self, batch: KVBatchMeta) -> dict[str, tuple[KVBatchMeta, dict[str, float]]]:
        """Update each trained policy from its own rows. Returns policy -> result of `PolicyRuntime.update`."""
        parts = by_policy(batch)
        calls = {
            runtime.name: partial(runtime.update, parts[runtime.name])
            for runtime in self.trained
            if runtime.name in parts
        }
        return self._alone_first(calls)

    def _alone_first(self, calls: Mapping[str, Callable[[], T]]) -> dict[str, T]:
        """Call the functions of the `alone` policies one after another, then those of the others at once."""
        results = {name: call() for name, call in calls.items() if name in self.alone}
        return results | at_once({name: call for name, call in calls.items() if name not in self.alone})


def _config_of(config: DictConfig, policy: str) -> DictConfig:
    """The whole config for one policy, in verl's layout."""
    whole: Any = OmegaConf.create(OmegaConf.to_container(config))
    with open_dict(whole):
        section = whole.policies[policy]
        whole.actor_rollout_ref = section.actor_rollout_ref
        whole.algorithm.rollout_correction = section.algorithm.rollout_correction
        whole.trainer.n_gpus_per_node, whole.trainer.nnodes = section.trainer.n_gpus_per_node, section.trainer.nnodes
        del whole["policies"]
    return whole  # type: ignore[no-any-return]
