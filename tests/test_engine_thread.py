"""vLLM's engine in a thread of its server (a CPU): the part of a process that vLLM uses."""

import importlib
import importlib.metadata
import queue
from collections.abc import Iterator
from multiprocessing import connection
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.slow
pytest.importorskip("vllm")


@pytest.fixture(scope="module")
def servers() -> Iterator[Any]:
    """The module, during whose import verl must find vLLM on a CPU."""
    from marl_verl.backend.verl.platforms import vllm_plugin as workarounds

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.metadata, "version", importlib.metadata.version)
        workarounds.alias_vllm_version()
        yield importlib.import_module("marl_verl.backend.verl.vllm_servers")


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
