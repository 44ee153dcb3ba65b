"""Crash detection, with real Ray actors that are killed while they work."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from marl_verl.backend.protocol import Host
from marl_verl.backend.verl import watch as module
from marl_verl.backend.verl.session import RAY
from marl_verl.backend.verl.watch import KILLED, Watch, cause_of_death, is_healthy, queue_actors
from marl_verl.run.run_dir import how_to_continue

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_prestart_worker_first_driver", "0")  # else a process for every CPU
        for name, value in RAY.items():
            patch.setenv(name, value)
        patch.setenv("PYTHONBREAKPOINT", "")  # ray.init sets it; here it is undone
        ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False)
        yield ray
        ray.shutdown()


@pytest.fixture(scope="module")
def make(ray: Any) -> Callable[[], tuple[Any, int]]:
    """An actor that works until it is stopped, and its process."""

    class Worker:
        def __init__(self) -> None:
            self.engine = type("Engine", (), {"errored": False})()

        def pid(self) -> int:
            return os.getpid()

        def work(self, seconds: float) -> str:
            time.sleep(seconds)
            return "done"

        def break_engine(self) -> None:
            self.engine.errored = True

    def make() -> tuple[Any, int]:
        actor = ray.remote(Worker).remote()
        return actor, ray.get(actor.pid.remote())

    return make


class Ends:
    """Raised instead of ending the process."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.called = threading.Event()

    def __call__(self, code: int) -> None:
        self.codes.append(code)
        self.called.set()


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The events that the command line would get."""
    events: list[dict[str, Any]] = []
    monkeypatch.setattr(module, "emit", lambda event, **values: events.append({"event": event, **values}))
    return events


def _watch(ends: Ends, folder: Path, **actors: Any) -> Watch:
    named = {name.replace("_", " "): actor for name, actor in actors.items()}
    return Watch(named, lambda: "while updating in step 3", Host(ends, lambda: how_to_continue(folder)))


def test_a_killed_actor_is_reported_while_others_work(make: Any, events: list[dict[str, Any]], tmp_path: Path) -> None:
    (server, pid), (worker, _) = make(), make()
    ends = Ends()
    with _watch(ends, tmp_path, vLLM_server=server, training_worker=worker)():
        waiting = worker.work.remote(30)  # as a weight sync with a dead server
        time.sleep(1.5 * module.PERIOD)
        assert not ends.called.is_set()  # a busy one is not a dead one
        os.kill(pid, signal.SIGKILL)
        assert ends.called.wait(10 * module.PERIOD)
    assert ends.codes == [1]
    message = (
        "the vLLM server died while updating in step 3 (killed or out of memory, see train.log). "
        "No checkpoint was saved yet: start a new run"
    )
    assert events == [{"event": "error", "message": message, "expected": False}]
    del waiting


def test_a_server_whose_engine_is_dead_is_dead(make: Any, events: list[dict[str, Any]], tmp_path: Path) -> None:
    server, _ = make()
    ends = Ends()
    with _watch(ends, tmp_path, vLLM_server=server)():
        server.break_engine.remote()
        assert ends.called.wait(10 * module.PERIOD)
    assert "the vLLM server died" in events[0]["message"]


def test_an_error_of_a_dead_actor_names_it(ray: Any, make: Any, events: list[dict[str, Any]], tmp_path: Path) -> None:
    actor, pid = make()
    ends = Ends()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ValueError, match="64 of 64"), _watch(ends, tmp_path, rollout_worker_0=actor)():
        raise ValueError("64 of 64 attempts failed")
    assert ends.codes == [1]
    assert "the rollout worker 0 died" in events[0]["message"]


def test_an_actor_that_is_unavailable_may_still_live() -> None:
    from ray import exceptions

    assert cause_of_death(exceptions.ActorUnavailableError("no connection", None)) is None
    assert cause_of_death(exceptions.ActorDiedError()) == cause_of_death(exceptions.NodeDiedError("gone")) == KILLED


OUT_OF_MEMORY = """
import os, signal, threading, time
os.environ.update(RAY_memory_usage_threshold="0.01", RAY_memory_monitor_refresh_ms="100")
import ray
from ray._private import worker
from marl_verl.backend.protocol import Host
from marl_verl.backend.verl.session import RAY
from marl_verl.backend.verl.watch import Watch

os.environ.update(RAY, RAY_prestart_worker_first_driver="0")
ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)

class Worker:
    def work(self):
        self.memory = bytes(200_000_000)
        time.sleep(60)

actor = ray.remote(Worker).remote()
waiting = actor.work.remote()
for kind, actors in (("", {"training worker of policy 'a'": actor}), ("gcs_server", {}), ("raylet", {})):
    ended = threading.Event()
    begun = time.monotonic()
    with Watch(actors, lambda: "while updating", Host(lambda code: ended.set(), lambda: "Start again"))():
        if kind:
            os.kill(worker._global_node.all_processes[kind][0].process.pid, signal.SIGKILL)
        assert ended.wait(30)
    print(kind, time.monotonic() - begun, flush=True)
    worker._global_node.all_processes.pop(kind, None)
os._exit(0)
"""


def test_the_memory_monitor_and_a_killed_ray_server_end_a_run_with_their_name() -> None:
    done = subprocess.run([sys.executable, "-c", OUT_OF_MEMORY], capture_output=True, text=True, timeout=120)
    memory, gcs, raylet = [line for line in done.stderr.splitlines() if line.startswith("marl-verl: ")]
    assert memory.startswith(
        "marl-verl: the training worker of policy 'a' died while updating (out of memory, killed by Ray; lower actor."
    )
    assert gcs.startswith("marl-verl: Ray's gcs_server died while updating (killed or out of memory, see train.log)")
    assert raylet.startswith("marl-verl: Ray's raylet died while updating (killed or out of memory")
    seconds = [float(line.split()[-1]) for line in done.stdout.splitlines()]
    assert max(seconds[1:]) < 10  # Ray itself ends the driver after a minute, without a reason


def test_an_error_of_its_own_stays_what_it_is(make: Any, events: list[dict[str, Any]], tmp_path: Path) -> None:
    idle, busy = make()[0], make()[0]
    waiting, begun = busy.work.remote(30), time.monotonic()
    ends = Ends()
    with pytest.raises(ValueError, match="a mistake"), _watch(ends, tmp_path, idle=idle, busy=busy)():
        raise ValueError("a mistake")
    assert time.monotonic() - begun < 10 * module.PERIOD
    assert (ends.codes, events) == ([], [])
    del waiting


def test_the_processes_of_transfer_queue_are_found(ray: Any) -> None:
    import transfer_queue
    from omegaconf import OmegaConf

    transfer_queue.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 2}}}))
    found = queue_actors()
    assert list(found) == ["TransferQueue controller", "TransferQueue storage 0", "TransferQueue storage 1"]
    assert ray.get([actor.__ray_call__.remote(is_healthy) for actor in found.values()]) == [True] * 3
    transfer_queue.close()
