"""vLLM's engine in a thread of its server (a CPU): the part of a process that vLLM uses."""

import asyncio
import queue
from multiprocessing import connection
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import Qwen3Config

from tests.served import servers as servers

pytestmark = pytest.mark.slow


class Engine:
    """Fake of EngineCoreProc: its loop takes from the input queue, as vLLM's does, until asked to shut down."""

    def __init__(self, **options: Any) -> None:
        self.options, self.input_queue, self.calls = options, queue.Queue[Any](), list[str]()
        self.shutdown_state = "running"

    def run_busy_loop(self) -> None:
        while self.shutdown_state == "running":
            item = self.input_queue.get(timeout=20)
            if isinstance(item, Exception):
                raise item
        raise SystemExit

    def _send_engine_dead(self) -> None:
        self.calls.append("dead")

    def shutdown(self) -> None:
        self.calls.append("shutdown")


def test_a_server_of_one_gpu_has_no_worker_process_and_waits_on_a_gpu(servers: Any, monkeypatch: Any) -> None:
    sizes, options = ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size"), {}

    class Server(servers.PolicyServer):  # type: ignore[misc]
        may_start, config = False, SimpleNamespace(**dict.fromkeys(sizes, 1))
        lora_as_adapter, model_config = True, SimpleNamespace(hf_config=Qwen3Config(vocab_size=25, hidden_size=64))
        __init__ = object.__init__

    async def launch(self: Any) -> None:
        self._preprocess_engine_kwargs(options)

    async def run() -> None:
        server = Server()
        starting = asyncio.create_task(server.launch_server())
        await asyncio.sleep(0.05)
        assert not options
        await server.start_engine()
        await starting

    monkeypatch.setattr(servers.vLLMHttpServer, "launch_server", launch)
    asyncio.run(run())
    assert options == {"distributed_executor_backend": "uni", "lora_target_modules": servers.TINY_LAYERS}


@pytest.fixture
def started(servers: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(servers, "EngineCoreProc", Engine)
    options = {"vllm_config": "config", "log_stats": False, "dp_rank": 0, "local_dp_rank": 0}
    thread = servers.EngineThread(target=None, name="EngineCore", kwargs=options)
    thread.start()
    return thread


def engine_of(thread: Any) -> Any:
    while thread.engine is None:
        assert thread.is_alive()
    return thread.engine


def test_it_ends_when_terminated(started: Any) -> None:
    engine = engine_of(started)
    assert engine.options == {"vllm_config": "config", "log_stats": False}
    assert started.exitcode is None
    assert not connection.wait([started.sentinel], timeout=0)
    started.terminate()
    assert connection.wait([started.sentinel], timeout=20)
    started.join(20)
    assert not started.is_alive()
    assert started.exitcode == 0
    assert engine.calls == ["shutdown"]


def test_a_failure_is_told_to_the_server(started: Any, caplog: pytest.LogCaptureFixture) -> None:
    engine = engine_of(started)
    engine.input_queue.put(MemoryError("no memory"))
    started.join(20)
    assert started.exitcode == 1
    assert connection.wait([started.sentinel], timeout=0)
    assert engine.calls == ["dead", "shutdown"]
    assert "no memory" in caplog.text


def test_vllm_takes_the_thread(servers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.engine import utils

    monkeypatch.setattr(utils, "get_mp_context", utils.get_mp_context)
    monkeypatch.setattr(servers, "EngineCoreProc", Engine)
    servers.use_threads()
    parallel = SimpleNamespace(data_parallel_size=1, assigned_physical_gpu_ids=None, numa_bind=False)
    manager = utils.CoreEngineProcManager(
        1, 0, 0, SimpleNamespace(parallel_config=parallel), True, "address", object, False
    )
    (thread,) = manager.processes
    assert isinstance(thread, servers.EngineThread)
    assert engine_of(thread).options["handshake_address"] == "address"
    manager.shutdown(timeout=20)
    assert not thread.is_alive()
    assert manager.finished_procs() == {"EngineCore": 0}
