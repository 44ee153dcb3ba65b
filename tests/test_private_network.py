"""A run's own network: others cannot connect to it, and what cannot work in it is refused."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from marl_verl.errors import MarlError
from marl_verl.run import private_network
from marl_verl.run.progress import Display
from marl_verl.run.supervisor import TrainerProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux network namespaces")

SERVER = """
import ctypes, os, socket, sys
from marl_verl.run import private_network
from marl_verl.run.supervisor import TrainerProcess
"a".encode("idna")  # loaded before the files of root are out of reach
if len(sys.argv) > 2:
    os.setgid(int(sys.argv[2])), os.setuid(int(sys.argv[2]))
    ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE, as after the start of a program
user = os.geteuid(), os.getegid()
if sys.argv[1] == "private":
    private_network.enter()
assert (os.geteuid(), os.getegid()) == user
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname(), timeout=10).close()  # its own processes can
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""


def serve(*arguments: str) -> Iterator[int]:
    command = [sys.executable, "-c", SERVER, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.communicate()
        assert process.returncode == 0


def reached(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("network", ["private", "shared"])
@pytest.mark.parametrize("user", [None, "65534"])
def test_others_cannot_connect(network: str, user: str | None) -> None:
    if user and os.geteuid():
        pytest.skip("only root can become another user")
    if network == "private" and private_network._forbidden():
        pytest.skip(f"this kernel: {private_network._forbidden()}")
    for port in serve(network, *filter(None, [user])):
        assert reached(port) == (network == "shared")


def asked(endpoint: Any = None, **start: Any) -> tuple[Any, Any]:
    config = OmegaConf.create({"marl": {"run": {"private_network": True}}, "ray_kwargs": {"ray_init": start}})
    return config, OmegaConf.create({"policies": {"judge": {"endpoint": endpoint}}})


def test_what_is_outside_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_network, "_forbidden", lambda: "")
    private_network.check(*asked())
    private_network.check(*asked(address="local"))
    with pytest.raises(MarlError, match=r"'marl.run.private_network' is on, but policy 'judge' is an endpoint"):
        private_network.check(*asked(endpoint="http://127.0.0.1:1"))
    with pytest.raises(MarlError, match=r"'ray_kwargs.ray_init.address' is 'auto'"):
        private_network.check(*asked(address="auto"))


@pytest.mark.parametrize("private", [True, False])
def test_the_trainer_of_a_run_is_in_it(private: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if private and private_network._forbidden():
        pytest.skip(f"this kernel: {private_network._forbidden()}")
    (tmp_path / "trainer_that_says_where.py").write_text("import os; print(os.readlink('/proc/self/ns/net'))")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = TrainerProcess(tmp_path, [], module="trainer_that_says_where", private_network=private)
    run.run(Display(), time.time())
    assert (run.log.read_text().strip() != os.readlink("/proc/self/ns/net")) == private
