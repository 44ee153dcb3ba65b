"""All policies of a run: their runtimes, which start, update and sync weights concurrently."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf, open_dict
from transfer_queue import KVBatchMeta

from marl_verl.algo.advantage import AdvantageResult
from marl_verl.backend.verl.batches import by_policy, put_advantages
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
                own = policy, _config_of(config, name), devices[name], self.critics.colocated(name)
                self.runtimes[name] = PolicyRuntime(*own) if policy.base is None else SharedRuntime(*own, sharing)
        self.trained = [runtime for runtime in self.runtimes.values() if isinstance(runtime, PolicyRuntime)]
        # read from the files of the weights here, not in every step
        self.alone = {each.name for each in self.trained if uses_all_cores(each.config.actor_rollout_ref.model.path)}

    @property
    def early_clients(self) -> bool:
        """Whether the clients of all policies exist before the servers are up."""
        return all(runtime.early for runtime in self.runtimes.values())

    def clients(self) -> dict[str, Any]:
        return {name: runtime.client() for name, runtime in self.runtimes.items()}

    def actors(self) -> dict[str, Any]:
        return {what: actor for runtime in self.runtimes.values() for what, actor in runtime.actors().items()}

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

    def put_advantages(self, batch: KVBatchMeta, result: AdvantageResult) -> None:
        """Write the advantages of each of a batch's n rows to TransferQueue, for the update of its policy."""
        put_advantages(batch, result, {runtime.name for runtime in self.trained})

    def update(self, batch: KVBatchMeta) -> dict[str, tuple[KVBatchMeta, dict[str, float]]]:
        """Update each trained policy from its own rows. Returns policy -> result of `PolicyRuntime.update`."""
        parts = by_policy(batch)
        chosen = [runtime for runtime in self.trained if runtime.name in parts]
        calls = {runtime.name: partial(_update, runtime, parts[runtime.name]) for runtime in chosen}
        return self._alone_first(calls)

    def _alone_first(self, calls: Mapping[str, Callable[[], T]]) -> dict[str, T]:
        """Call the functions of the `alone` policies one after another, then those of the others at once."""
        found = {name: call() for name, call in calls.items() if name in self.alone}
        return found | at_once({name: call for name, call in calls.items() if name not in self.alone})


def _update(runtime: PolicyRuntime, part: KVBatchMeta) -> tuple[KVBatchMeta, dict[str, float]]:
    begun = time.monotonic()
    part, values = runtime.update(part)
    return part, {**values, "update_seconds": time.monotonic() - begun}


def _config_of(config: DictConfig, policy: str) -> DictConfig:
    """The whole config for one policy, in verl's layout."""
    found: Any = OmegaConf.create(OmegaConf.to_container(config))
    with open_dict(found):
        own = found.policies[policy]
        found.actor_rollout_ref = own.actor_rollout_ref
        found.algorithm.rollout_correction = own.algorithm.rollout_correction
        found.trainer.n_gpus_per_node, found.trainer.nnodes = own.trainer.n_gpus_per_node, own.trainer.nnodes
        del found["policies"]
    return found  # type: ignore[no-any-return]
