"""The part of vLLM's worker that receives weights, with a choice of the adapter to replace."""

from typing import Any

from verl.workers.rollout.vllm_rollout import utils
from verl.workers.rollout.vllm_rollout.utils import VLLM_LORA_INT_ID, vLLMColocateWorkerExtension


class PolicyWorkerExtension(vLLMColocateWorkerExtension):
    """verl's extension of vLLM's worker, for servers with several adapters."""

    def update_weights_from_ipc(self, adapter: int | None = None, **options: Any) -> None:
        """verl's method; `adapter` is the number of the adapter that the weights replace."""
        number = VLLM_LORA_INT_ID + (adapter or 0)
        utils.VLLM_LORA_INT_ID, utils.VLLM_LORA_NAME = number, str(number)
        super().update_weights_from_ipc(**options)
