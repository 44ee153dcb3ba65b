"""Server and replica (driver side) of a policy, with names and ranks per policy.

Policies with `base: shared` have one server with an adapter each: verl gives every request the adapter
`VLLM_LORA_INT_ID`, and the server replaces it by that of the request's policy, `VLLM_LORA_INT_ID` + its number.
"""

import asyncio
import logging
import multiprocessing
import os
import threading
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from types import SimpleNamespace
from typing import Any

import ray
from verl.workers.rollout.replica import RolloutMode
from verl.workers.rollout.vllm_rollout import vllm_async_server
from verl.workers.rollout.vllm_rollout.utils import VLLM_LORA_INT_ID, VLLM_LORA_PATH
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica
from vllm.lora.request import LoRARequest
from vllm.v1.engine import EngineCoreRequestType, utils
from vllm.v1.engine.core import EngineCoreProc, EngineShutdownState

from marl_verl.backend.verl.devices import Slots
from marl_verl.config.hardware import cpu_run, first_replica_rank
from marl_verl.config.placement import server_gpus

logger = logging.getLogger(__name__)
ADAPTER: ContextVar[int | None] = ContextVar("adapter", default=None)
"""Number of the adapter of the request that is being sent to the engine."""

TINY_LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class PolicyServer(vLLMHttpServer):
    """The server actor of one replica, without HTTP: its requests are calls of the actor, which Ray delivers.

    An HTTP server would answer every user of the machine.
    """

    versions: dict[int, int]
    """Number of an adapter -> the version of its weights; empty without `base: shared`."""
    may_start = cpu_run()
    """Whether the engine may start: on a GPU it measures the free memory, which must not change meanwhile."""

    async def start_engine(self) -> None:
        self.may_start = True

    async def launch_server(self, *args: Any, **options: Any) -> None:
        while not self.may_start:
            await asyncio.sleep(0.02)
        await super().launch_server(*args, **options)

    async def generate(self, *args: Any, adapter: int | None = None, **options: Any) -> Any:
        """verl's method; `adapter` is the number of the request's adapter on a shared base model."""
        if adapter is None:
            return await super().generate(*args, **options)
        ADAPTER.set(adapter)  # of this call: Ray runs each in its own task
        output = await super().generate(*args, **options)
        output.extra_fields["global_steps"] = self.versions[adapter]
        return output

    async def set_version(self, adapter: int, version: int) -> None:
        """Set the version of an adapter, which its actions report from now on."""
        self.versions[adapter] = version

    def _preprocess_engine_kwargs(self, engine_kwargs: dict[str, Any]) -> None:
        super()._preprocess_engine_kwargs(engine_kwargs)
        self.adapters = int(engine_kwargs.pop("max_loras", 1))  # verl would set it back to 1
        if server_gpus(self.config) == 1:  # vLLM's default: no separate worker process; verl's is "mp"
            engine_kwargs.setdefault("distributed_executor_backend", "uni")
        model = self.model_config.hf_config.get_text_config()
        if self.lora_as_adapter and model.vocab_size < model.hidden_size:  # vLLM's warm-up fails in a tied output layer
            engine_kwargs.setdefault("lora_target_modules", TINY_LAYERS)
        self.versions = {}

    def _get_worker_extension_cls(self) -> str:
        return "marl_verl.backend.verl.vllm_worker.PolicyWorkerExtension"

    async def run_headless(self, args: Any) -> None:
        args.max_loras = self.adapters
        await super().run_headless(args)

    async def run_server(self, args: Any) -> None:
        """verl's method; the server's port, a part of its name in verl's load balancer, is its replica rank."""

        async def without_http(app: Any, args: Any, address: str) -> tuple[int, asyncio.Task[None]]:
            return self.replica_rank, asyncio.create_task(asyncio.sleep(0))

        vllm_async_server.run_uvicorn = without_http
        args.max_loras = self.adapters
        if cpu_run() and server_gpus(self.config) == 1:
            use_threads()
        await super().run_server(args)
        if self.adapters > 1:
            self.engine.generate = with_adapter(self.engine.generate)


def with_adapter(generate: Callable[..., Any]) -> Callable[..., Any]:
    """The engine's `generate` with the adapter of the request's policy in place of verl's only one."""

    @wraps(generate)
    def chosen(*args: Any, lora_request: Any = None, **options: Any) -> Any:
        number = ADAPTER.get()
        if number is not None:
            identity = VLLM_LORA_INT_ID + number
            lora_request = LoRARequest(
                lora_name=str(identity), lora_int_id=identity, lora_path=f"{VLLM_LORA_PATH}-{number}"
            )
        return generate(*args, lora_request=lora_request, **options)

    return chosen


class PolicyReplica(vLLMReplica):
    """Driver side: launches the server actors of one replica of one policy."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.server_class = ray.remote(PolicyServer)

    async def init_hybrid(self, worker_group: Any) -> None:
        """verl's method, with the replica's workers counted from the policy's first replica rank."""
        # on slots there are no training workers, and no weights are ever synced to the server
        self.rollout_mode = RolloutMode.COLOCATED if isinstance(worker_group, Slots) else RolloutMode.HYBRID
        local = self.replica_rank - first_replica_rank(self.config.name)
        self.workers = list(worker_group.workers)[self.world_size * local : self.world_size * (local + 1)]
        await self.launch_servers()

    def _get_server_name_prefix(self) -> str:
        return f"{self.config.name}_"


class EngineThread(threading.Thread):
    """vLLM's engine in a thread of its server, on a CPU; it has what vLLM uses of a `multiprocessing.Process`.

    A process would load torch and vllm once more: 0.5 GiB and seconds of start-up for every server. Uses vLLM
    internals: `CoreEngineProcManager` takes its process from `get_mp_context`; `EngineCoreProc` is the engine in it.
    """

    pid = None  # vLLM kills processes that do not end in time; a thread ends with its process

    def __init__(self, target: Any, name: str, kwargs: dict[str, Any]) -> None:
        super().__init__(name=name, daemon=True)
        self.options = {key: value for key, value in kwargs.items() if not key.endswith("dp_rank")}
        self.engine: EngineCoreProc | None = None
        self.exitcode: int | None = None
        self.sentinel, self._ended = os.pipe()  # readable at its end

    def run(self) -> None:
        """As `EngineCoreProc.run_engine_core`, the target, which also sets the process's signal handlers and name."""
        code = 1
        try:
            self.engine = EngineCoreProc(**self.options)
            self.engine.run_busy_loop()
        except SystemExit:
            code = 0
        except Exception:
            logger.exception("vLLM's engine failed")
            if self.engine is not None:
                self.engine._send_engine_dead()
        finally:
            self.exitcode = code
            os.close(self._ended)
            if self.engine is not None:
                self.engine.shutdown()

    def terminate(self) -> None:
        """End the loop after the step that is running."""
        if self.engine is not None:
            self.engine.shutdown_state = EngineShutdownState.REQUESTED
            self.engine.input_queue.put_nowait((EngineCoreRequestType.WAKEUP, None))


def use_threads() -> None:
    """The engines of servers that this process starts from now on run in threads."""
    utils.get_mp_context = lambda: SimpleNamespace(Process=EngineThread, Queue=multiprocessing.Queue)
