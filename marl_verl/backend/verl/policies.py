"""The policies of a run on Ray, on the devices of their pools."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from marl_verl.backend.learning.critic import Critics
from marl_verl.backend.policies import Policies
from marl_verl.backend.runtime import Runtime
from marl_verl.backend.verl.devices import Devices
from marl_verl.backend.verl.policy_runtime import PolicyRuntime, RayCritic, SharedRuntime
from marl_verl.backend.verl.policy_servers import FrozenRuntime, PastRuntime, Servers
from marl_verl.backend.verl.rollouts import QueueStore
from marl_verl.config.hardware import cpu_run
from marl_verl.config.model_settings import uses_all_cores
from marl_verl.config.placement import pools_of
from marl_verl.team import TeamConfig


class RayPolicies(Policies):
    """`Policies` with Ray actors."""

    def __init__(self, config: DictConfig, team: TeamConfig, store: QueueStore) -> None:
        devices: dict[str, Devices] = {}
        for pool in pools_of(config, team):
            # colocated policies on a CPU need no lock: there is no device memory to run out of
            devices |= dict.fromkeys(pool.policies, Devices(pool, serial=pool.shared and not cpu_run()))

        def critic(name: str, settings: DictConfig, updates: int) -> RayCritic:
            return RayCritic(name, settings, devices[str(settings.policy)], updates)

        critics = Critics(config, team, store, critic)
        runtimes: dict[str, Runtime] = {}
        sharing: list[SharedRuntime] = []
        for name, policy in team.policies.items():
            if policy.external:
                runtimes[name] = Runtime(policy)
                continue
            own = config_of(config, name)
            if policy.frozen:
                kind = FrozenRuntime if policy.past is None else PastRuntime
                runtimes[name] = kind(policy, own, devices[name])
                continue
            beside: Any = critics.beside(name)
            if policy.base is None:
                runtimes[name] = PolicyRuntime(policy, own, devices[name], store, beside)
            else:
                runtimes[name] = SharedRuntime(policy, own, devices[name], store, beside, sharing)
        # read from the files of the weights here, not in every step
        trained = [name for name, policy in team.policies.items() if policy.trained]
        paths = {name: str(config.policies[name].actor_rollout_ref.model.path) for name in trained}
        super().__init__(runtimes, critics, alone={name for name in trained if uses_all_cores(paths[name])})

    @property
    def early_clients(self) -> bool:
        """Whether the clients of all policies exist before the servers are up."""
        return all(runtime.early for runtime in self.runtimes.values() if isinstance(runtime, Servers))

    def actors(self) -> dict[str, Any]:
        """Description -> Ray actor, for every process whose death ends the run."""
        servers = [runtime for runtime in self.runtimes.values() if isinstance(runtime, Servers)]
        return {label: actor for runtime in servers for label, actor in runtime.actors().items()}


def config_of(config: DictConfig, policy: str) -> DictConfig:
    """The whole config for one policy, in verl's layout."""
    whole: Any = OmegaConf.create(OmegaConf.to_container(config))
    with open_dict(whole):
        section = whole.policies[policy]
        whole.actor_rollout_ref = section.actor_rollout_ref
        whole.algorithm.rollout_correction = section.algorithm.rollout_correction
        whole.trainer.n_gpus_per_node, whole.trainer.nnodes = section.trainer.n_gpus_per_node, section.trainer.nnodes
        del whole["policies"]
    return whole  # type: ignore[no-any-return]
