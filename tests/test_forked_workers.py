"""Workers as forks of a process with its imports: what a worker has of the process that asked for it. With real Ray and
vLLM: tests/e2e."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from marl_verl.backend.verl import forked_workers

SERVE = """
from marl_verl.backend.verl import forked_workers
forked_workers.WITHOUT_RAY, forked_workers.WITH_RAY = ("imported",), ()
forked_workers.serve({})
"""
WORKER = """
import json, os, sys
names = ("OF_IMPORT", "OF_PROCESS", "OF_WORKER", "OF_ENVIRONMENT")
print(json.dumps([os.getppid(), "imported" in sys.modules, sys.argv[1:], *map(os.environ.get, names)]))
"""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    (tmp_path / "imported.py").write_text("import os\nos.environ['OF_IMPORT'] = 'set'\n")
    (tmp_path / "worker.py").write_text(WORKER)
    monkeypatch.setenv(forked_workers.ADDRESS, str(tmp_path / "forks"))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "forks"))
        listening.listen()
        command = [sys.executable, "-c", SERVE.format(listening.fileno())]
        variables = {**os.environ, "PYTHONPATH": str(tmp_path), "OF_PROCESS": "set"}
        process = subprocess.Popen(command, pass_fds=[listening.fileno()], env=variables)
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def answer(server: subprocess.Popen[bytes], tmp_path: Path) -> Callable[[], list[Any]]:
    """What a worker prints that is asked for as Ray does, with a runtime environment."""
    context = json.dumps({"env_vars": {"OF_ENVIRONMENT": "${OF_WORKER}s"}})
    options = [f"--serialized-runtime-env-context={context}", "--language=PYTHON"]
    command = [sys.executable, forked_workers.__file__, *options, str(tmp_path / "worker.py"), "--node=1"]

    def ask() -> list[Any]:
        done = subprocess.run(command, env={**os.environ, "OF_WORKER": "own"}, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return list(json.loads(done.stdout))

    return ask


def test_a_worker_is_a_fork_with_the_environment_that_ray_gave_it(server: Any, answer: Callable[[], Any]) -> None:
    for _ in range(2):
        assert answer() == [server.pid, True, ["--node=1"], "set", None, "own", "owns"]


def test_without_the_process_ray_starts_the_worker(server: Any, answer: Callable[[], Any]) -> None:
    server.kill()
    server.wait()
    assert answer() == [os.getpid(), False, ["--node=1"], None, None, "own", "owns"]
