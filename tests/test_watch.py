"""Crash detection, with real Ray actors that are killed while they work."""

from __future__ import annotations

import importlib.util
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from marl_verl.evaluation.request import REQUEST
from marl_verl.process import watch as module
from marl_verl.process.watch import Phases, Watch, how_to_continue, is_healthy, one_line, queue_actors

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_prestart_worker_first_driver", "0")  # else a process for every CPU
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
    return Watch(named, lambda: "while updating in step 3", folder, ends)


def test_a_killed_actor_is_reported_while_the_main_thread_waits_for_another(
    make: Any, events: list[dict[str, Any]], tmp_path: Path
) -> None:
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


def test_an_error_caused_by_a_dead_actor_is_reported_as_its_death(
    ray: Any, make: Any, events: list[dict[str, Any]], tmp_path: Path
) -> None:
    actor, pid = make()
    ends = Ends()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ValueError, match="64 of 64"), _watch(ends, tmp_path, rollout_worker_0=actor)():
        raise ValueError("64 of 64 attempts failed")
    assert ends.codes == [1]
    assert "the rollout worker 0 died" in events[0]["message"]


def test_an_actor_that_ray_calls_unavailable_at_first_is_asked_again(
    ray: Any, make: Any, events: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor, pid = make()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ray.exceptions.ActorDiedError):
        ray.get(actor.pid.remote())
    left, really = iter([True] * 20), module._alive  # of a second or two, in which it counts as well
    monkeypatch.setattr(module, "_alive", lambda question: next(left, None) or really(question))
    monkeypatch.setattr(Watch, "_look", lambda self: None)
    ends = Ends()
    with pytest.raises(ray.exceptions.RayActorError), _watch(ends, tmp_path, rollout_worker_0=actor)():
        ray.get(actor.pid.remote())
    assert "the rollout worker 0 died" in events[0]["message"]


def test_an_actor_that_cannot_be_reached_is_not_dead_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray
    from ray.exceptions import ActorDiedError, ActorUnavailableError, OutOfMemoryError

    dead = [(ActorDiedError(), False), (OutOfMemoryError("killed by Ray's memory monitor"), False)]
    for error, well in ((ActorUnavailableError("no connection", None), True), *dead):

        def get(question: Any, error: Exception = error) -> Any:
            raise error

        monkeypatch.setattr(ray, "get", get)
        assert module._alive(object()) is well


def test_a_death_found_while_the_run_shuts_down_is_none(
    events: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = Ends()
    watch = _watch(ends, tmp_path)
    monkeypatch.setattr(module, "PERIOD", 0.01)
    monkeypatch.setattr(watch, "_died", lambda: watch._stopped.set() or "the server died")
    watch._look()
    assert (ends.codes, events) == ([], [])


def test_an_error_of_its_own_stays_what_it_is(make: Any, events: list[dict[str, Any]], tmp_path: Path) -> None:
    idle, busy = make()[0], make()[0]
    waiting = busy.work.remote(30)
    begun = time.monotonic()
    ends = Ends()
    with pytest.raises(ValueError, match="a mistake"), _watch(ends, tmp_path, idle=idle, busy=busy)():
        raise ValueError("a mistake")
    assert time.monotonic() - begun < 10 * module.PERIOD
    assert (ends.codes, events) == ([], [])
    del waiting


def test_no_check_after_the_end(make: Any, events: list[dict[str, Any]], tmp_path: Path) -> None:
    actor, pid = make()
    ends = Ends()
    with _watch(ends, tmp_path, actor=actor)():
        pass
    os.kill(pid, signal.SIGKILL)
    assert not ends.called.wait(2 * module.PERIOD)
    assert "watch" not in {thread.name for thread in threading.enumerate()}


def test_an_actor_without_an_engine_is_healthy() -> None:
    assert is_healthy(object())


def test_a_failed_vllm_engine_is_detected() -> None:
    """`is_healthy` reads `AsyncLLM.errored`, and verl's server calls its AsyncLLM `engine`."""
    engine = _source("vllm", "v1/engine/async_llm.py")
    assert "def errored(self) -> bool" in engine, "vLLM has moved AsyncLLM.errored: is_healthy needs it"
    server = _source("verl", "workers/rollout/vllm_rollout/vllm_async_server.py")
    assert "self.engine = engine_client" in server, "verl has renamed its server's engine: is_healthy needs it"


def _source(package: str, path: str) -> str:
    """Text of a file of an installed package, which is not imported for it."""
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.submodule_search_locations is not None
    return (Path(found.submodule_search_locations[0]) / path).read_text()


@pytest.mark.e2e
def test_the_processes_of_transfer_queue_are_found(ray: Any) -> None:
    import transfer_queue
    from omegaconf import OmegaConf

    transfer_queue.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 2}}}))
    found = queue_actors()
    assert list(found) == ["TransferQueue controller", "TransferQueue storage 0", "TransferQueue storage 1"]
    assert ray.get([actor.__ray_call__.remote(is_healthy) for actor in found.values()]) == [True] * 3
    transfer_queue.close()


# -- error messages -----------------------------------------------------------------------------------------------


def test_the_message_for_a_dead_actor_that_is_not_watched(ray: Any, make: Any) -> None:
    actor, pid = make()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ray.exceptions.ActorDiedError) as caught:
        ray.get(actor.work.remote(0))
    name = "make.<locals>.Worker"
    assert one_line(caught.value) == f"a Ray actor ({name}, process {pid}) died: killed or out of memory"


def test_an_actor_whose_constructor_fails_is_reported_with_its_error(ray: Any) -> None:
    class Broken:
        def __init__(self) -> None:
            raise ValueError("no such model")

    with pytest.raises(ray.exceptions.ActorDiedError) as caught:
        ray.get(ray.remote(Broken).remote().__ray_ready__.remote())
    assert one_line(caught.value) == "ActorDiedError: ValueError: no such model"


def test_other_errors_are_their_last_line() -> None:
    assert one_line(KeyError()) == "KeyError: no message"
    assert one_line(RuntimeError("first\n  last  \n")) == "RuntimeError: last"


def test_phases_overlap_and_the_one_that_failed_stays(events: list[dict[str, Any]]) -> None:
    phases = Phases(lambda: 12)
    assert phases.describe() == "while working in step 12"
    with phases("sampling"):
        with phases("updating"):
            assert phases.describe() == "while sampling and updating in step 12"
        assert phases.describe() == "while sampling in step 12"
        with pytest.raises(ValueError, match="x"), phases("syncing weights"):
            raise ValueError("x")
    assert phases.describe() == "while syncing weights in step 12"
    assert [event["activity"] for event in events][:2] == [
        "while sampling in step 12",
        "while sampling and updating in step 12",
    ]


def test_before_the_first_step_there_is_none() -> None:
    phases = Phases(lambda: 0)
    with phases("validating"):
        assert phases.describe() == "while validating, before the first step"


def test_a_run_with_a_checkpoint_can_be_continued(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "step_4").mkdir(parents=True)
    assert how_to_continue(tmp_path) == "No checkpoint was saved yet: start a new run"
    (tmp_path / "checkpoints" / "step_4" / "team.json").write_text("{}")
    assert how_to_continue(tmp_path) == f"Continue with: marl-verl train --resume {tmp_path}"
    (tmp_path / REQUEST).write_text("{}")
    assert how_to_continue(tmp_path) == "Run the evaluation again"
