"""Policies with `base: shared`: which settings must agree, their devices, and the adapter of each request."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from marl_verl_evaluation.launch import _policy
from omegaconf import DictConfig

from marl_verl.config.placement import PROCESSES, Pool, pools_of
from marl_verl.config.resolve import resolve
from marl_verl.config.stored import team_of
from tests.served import servers as servers

pytestmark = pytest.mark.slow  # whole configs are composed
RECIPE = """
  agents: {holder: {policy: one}, asker: {policy: two}}
  policies:
    one: {base: shared, tiny: {steps: 100}, actor: {optim: {lr: 1.0e-3}}}
    two: {base: shared, tiny: {steps: 100}, actor: {optim: {lr: 1.0e-2}}, rollout: {temperature: 0.7}}
actor_rollout_ref: {model: {lora_rank: 4, lora_alpha: 8}}
"""


def test_one_server_for_both_with_an_adapter_each(composed: DictConfig) -> None:
    team = team_of(composed)
    one, two = (resolve(composed, team).policies[name].actor_rollout_ref for name in ("one", "two"))
    assert one.rollout.name == two.rollout.name == "vllm-one"
    assert one.rollout.engine_kwargs.vllm.max_loras == 2
    assert one.model.lora.merge is two.model.lora.merge is False
    assert (one.actor.optim.lr, two.actor.optim.lr, two.rollout.temperature) == (1e-3, 1e-2, 0.7)
    (pool,) = pools_of(composed, team)
    assert pool == Pool("one", 1, 1, ("one", "two"), shared=False, processes=1)
    assert pool.cpus == PROCESSES


def test_an_evaluation_serves_each_policy_with_a_model_of_its_own() -> None:
    served = {"frozen": True, "model": {"path": "folder", "lora_rank": 0, "lora_adapter_path": None}}
    assert _policy({"base": "shared", "tiny": {}, "model": {"lora_rank": 4}}, "folder") == served


def test_requests_carry_the_adapter_of_their_policy(servers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.workers.rollout.vllm_rollout.utils import VLLM_LORA_INT_ID

    seen: list[Any] = []
    engine = servers.with_adapter(lambda _, lora_request=None: seen.append(lora_request and lora_request.lora_int_id))

    class Server(servers.PolicyServer):  # type: ignore[misc]
        def __init__(self) -> None:
            self.versions = {0: 3, 1: 5}

    async def answer(self: Any, prompt: Any) -> Any:
        await asyncio.sleep(0.01 * prompt)  # the first request ends last
        engine(prompt, lora_request=SimpleNamespace(lora_int_id=0))
        return SimpleNamespace(extra_fields={"global_steps": None})

    async def both() -> list[int]:
        server = Server()
        done = await asyncio.gather(*(server.generate(2 - number, adapter=number) for number in (0, 1)))
        await server.set_version(0, 4)
        done.append(await server.generate(0, adapter=0))
        return [output.extra_fields["global_steps"] for output in done]

    monkeypatch.setattr(servers.vLLMHttpServer, "generate", answer)
    assert asyncio.run(both()) == [3, 5, 4]
    assert seen == [VLLM_LORA_INT_ID + 1, VLLM_LORA_INT_ID, VLLM_LORA_INT_ID]
    assert servers.ADAPTER.get() is None


def test_weights_replace_the_adapter_of_their_policy(servers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.workers.rollout.vllm_rollout import utils

    from marl_verl.backend.verl.vllm_worker import VLLM_LORA_INT_ID, PolicyWorkerExtension

    seen: list[Any] = []

    class Worker(PolicyWorkerExtension):
        def __new__(cls) -> Any:
            return object.__new__(cls)

        def remove_lora(self, number: int) -> None:
            seen.append(number)

        def add_lora(self, request: Any) -> None:
            seen.append((request.lora_int_id, request.lora_name))

        device, local_rank = "cpu", 0
        _is_qat_model = _is_modelopt_qat = False
        _get_zmq_handle = staticmethod(lambda: "")

    receiver = SimpleNamespace(receive_weights=lambda on_bucket_received: on_bucket_received([], True))
    module = "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer.BucketedWeightReceiver"
    monkeypatch.setattr(module, lambda **options: receiver)
    for name in ("VLLM_LORA_INT_ID", "VLLM_LORA_NAME"):
        monkeypatch.setattr(utils, name, getattr(utils, name))
    for adapter in (1, None, 0):
        Worker().update_weights_from_ipc(adapter=adapter, peft_config={"r": 1}, base_sync_done=True)
    first = VLLM_LORA_INT_ID
    assert seen == [first + 1, (first + 1, str(first + 1)), first, (first, str(first)), first, (first, str(first))]
