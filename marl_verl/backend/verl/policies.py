"""The policies of a run on Ray, on the devices of their pools."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig

from marl_verl.backend.learning.critic import Critics
from marl_verl.backend.policies import Policies, runtimes_of
from marl_verl.backend.verl.devices import Devices
from marl_verl.backend.verl.policy_runtime import PolicyRuntime, RayCritic
from marl_verl.backend.verl.policy_servers import FrozenRuntime, Servers, single_server
from marl_verl.backend.verl.rollouts import QueueStore
from marl_verl.config.hardware import cpu_run
from marl_verl.config.model_settings import uses_all_cores
from marl_verl.config.placement import pools_of
from marl_verl.team import PolicyConfig, TeamConfig


class RayPolicies(Policies):
    """`Policies` with Ray actors."""

    def __init__(self, config: DictConfig, team: TeamConfig, store: QueueStore) -> None:
        devices: dict[str, Devices] = {}
        for pool in pools_of(config, team):
            # colocated policies on a CPU need no lock: there is no device memory to run out of
            devices |= dict.fromkeys(pool.policies, Devices(pool, serial=pool.shared and not cpu_run()))
        critics = Critics(config, team, store, lambda name, config: RayCritic(name, config, devices))

        def trained(policy: PolicyConfig, group: list[Any]) -> PolicyRuntime:
            return PolicyRuntime(policy, config, store, critics.beside(policy.name), group, devices[policy.name])

        runtimes = runtimes_of(team, lambda policy: FrozenRuntime(policy, config, devices[policy.name]), trained)
        super().__init__(runtimes, critics)
        # read from the files of the weights here, not in every step
        paths = {policy.name: config.policies[policy.name].actor_rollout_ref.model.path for policy in self.trained}
        self.alone = {name for name, path in paths.items() if uses_all_cores(str(path))}

    @property
    def early_clients(self) -> bool:
        """Whether the clients of all policies exist before the servers are up: their names are known."""
        servers = [runtime for runtime in self.runtimes.values() if isinstance(runtime, Servers)]
        return all(single_server(runtime.own_config) is not None for runtime in servers)

    def actors(self) -> dict[str, Any]:
        """Description -> Ray actor, for every process whose death ends the run."""
        servers = [runtime for runtime in self.runtimes.values() if isinstance(runtime, Servers)]
        return {label: actor for runtime in servers for label, actor in runtime.actors().items()}
