"""verl's training worker of a policy, whose rows may share what they have in common.

Uses verl internals: `ActorRolloutRefWorker`.
"""

from __future__ import annotations

from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.memory_utils import aggressive_empty_cache
from verl.workers.engine_workers import ActorRolloutRefWorker

from marl_verl.backend.learning.prefixes import share_prefixes


class PolicyWorker(ActorRolloutRefWorker):
    """verl's worker; calls with the option `prefixes.SHARE` compute shared prefixes once."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def init_model(self) -> None:
        """Load the model, and that of the reference."""
        super().init_model()
        for part in filter(None, (self.actor, self.ref)):
            share_prefixes(part.engine)
        aggressive_empty_cache(force_sync=True)  # the servers measure the device's free memory

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def masks(self) -> bool:
        """Whether the model's attention takes masks."""
        return bool(self.actor.engine.masks)
