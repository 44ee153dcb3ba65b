"""Ray's workers as forks of one process that has imported torch, vLLM and verl, in a run on a CPU.

Else every training worker, server and rollout worker imports them: 10 to 35 seconds of a core and up to 1 GiB each, of
which forks share most. Ray runs this file where it would run its `setup_worker.py`. It asks the process that `start`
has started for a fork and stays, as Ray's child, until the fork has ended. Uses Ray's internals: `RayParams`, and what
`setup_worker.py` does.
"""

import ctypes
import functools
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any

ADDRESS = "MARL_VERL_FORKS"  # variable with the path of the socket on which the process takes requests
WITHOUT_RAY = ("torch", "transformers", "tensordict", "vllm.entrypoints.openai.api_server")
WITH_RAY = ("policies", "vllm_servers", "vllm_worker")
"""Ray reads its settings when it is imported: it is, with the first worker's environment."""


def start(path: str) -> None:
    """Start the process, with a socket at `path`, for the Ray session that this process starts next."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(128)
        code = f"from {__name__} import serve; serve({listening.fileno()})"
        subprocess.Popen([sys.executable, "-P", "-c", code], pass_fds=[listening.fileno()], stdin=subprocess.DEVNULL)
    os.environ[ADDRESS] = path
    parameters = import_module("ray._private.parameter").RayParams
    # its monitor would look for more machines
    parameters.__init__ = functools.partialmethod(parameters.__init__, setup_worker_path=__file__, no_monitor=True)


def serve(descriptor: int) -> None:
    """Import, and fork a worker for each request on a listening socket, until the process that called `start` ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    environment = dict(os.environ)
    for name in WITHOUT_RAY:
        import_module(name)
    listening = socket.socket(fileno=descriptor)
    while True:
        client, _ = listening.accept()
        _, streams, *_ = socket.recv_fds(client, 1, 3)
        with client.makefile() as file:
            request = json.load(file)
        set_by_imports = {name: value for name, value in os.environ.items() if environment.get(name) != value}
        environment = request["environment"]
        os.environ.clear()
        os.environ.update(environment | set_by_imports)
        prepare()
        if not os.fork():
            break
        for descriptor in (*streams, client.detach()):
            os.close(descriptor)
    listening.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    client.sendall(b"1")
    become(request["arguments"])


@functools.cache
def prepare() -> None:
    """Before the first fork, import what imports Ray, without a use of Ray's generator of random ids: forks of a used
    one repeat its ids."""
    actor: Any = import_module("ray.actor")
    kind = actor.ActorClassID
    actor.ActorClassID = SimpleNamespace(from_random=lambda: kind(os.urandom(kind.size())))  # of every class of actors
    for name in WITH_RAY:
        import_module(f"marl_verl.backend.verl.{name}")
    actor.ActorClassID = kind
    gc.collect()
    gc.freeze()  # a collection in a fork would write to the pages of all objects
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system removes forks that have ended
    if id_of_a_fork() == id_of_a_fork():
        raise RuntimeError("an import has used Ray's generator of random ids: workers cannot be forks")


def id_of_a_fork() -> bytes:
    """A random id of Ray's that a fork has made; empty if the fork failed."""
    reading, writing = os.pipe()
    if not os.fork():
        os.write(writing, import_module("ray").UniqueID.from_random().binary())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        return file.read()


def become(arguments: Sequence[str]) -> None:
    """Do in this process what Ray's `setup_worker.py` does with these arguments."""
    from ray._private.runtime_env.context import RuntimeEnvContext, update_envs
    from ray._private.workers.setup_worker import parser
    from ray.core.generated.common_pb2 import Language

    options, command = parser.parse_known_args(arguments)
    context = RuntimeEnvContext.deserialize(options.serialized_runtime_env_context or "{}")
    if vars(context) != vars(RuntimeEnvContext(env_vars=context.env_vars)):  # another Python, a container
        context.exec_worker(command, Language.Value(options.language))
    update_envs(context.env_vars)
    sys.argv = [word for word in command if word not in ("-s", "-S")]  # flags of Python
    runpy.run_path(sys.argv[0], run_name="__main__")


def ask(arguments: Sequence[str]) -> None:
    """Have a fork run a worker, and return when it has ended. If the process of `serve` has ended, whose error is in
    the log, the worker runs here, as Ray's, and imports what it needs."""
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(os.environ[ADDRESS])
            socket.send_fds(server, [b"1"], [0, 1, 2])
            blocked = [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())]
            content = {"arguments": arguments, "environment": dict(os.environ), "blocked": blocked}
            server.sendall(json.dumps(content).encode())
            server.shutdown(socket.SHUT_WR)
            started = server.recv(1)
        except ConnectionError:
            started = b""
        if started:
            server.recv(1)
            return
    runpy.run_module("ray._private.workers.setup_worker", run_name="__main__")


if __name__ == "__main__":
    ask(sys.argv[1:])
