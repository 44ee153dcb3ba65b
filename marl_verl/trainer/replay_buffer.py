"""verl's replay buffer without its poll: it wakes when the rollout workers say that the tasks are done."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer


class TeamReplayBuffer(ReplayBuffer):
    """Blocks on `wait` where verl's sleeps two seconds.

    Args:
        wait: returns when every dispatched task has been marked finished in TransferQueue.
    """

    def __init__(self, wait: Callable[[], None], **options: Any) -> None:
        super().__init__(**options)
        self._wait = wait

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        self._wait()
        return time.time()
