"""The CPU platform, and its workarounds."""

import json
import os
import socket
import subprocess
import sys
from typing import Any

import psutil
import pytest

from tests.forks import in_fork

pytestmark = pytest.mark.slow

STATES = """
import importlib, json, os, sys
import torch, transformers  # once for both forks
import ray
from marl_verl.config import hardware

def used():
    from ray._common.usage import usage_lib
    return [sorted(usage_lib._recorded_library_usages), sorted(usage_lib._recorded_extra_usage_tags.items())]

def state():
    from marl_verl.backend.verl.session import NOTED_BY_RAY
    tables = [used()]
    for module in (NOTED_BY_RAY, "marl_verl.backend.verl.policies"):
        importlib.import_module(module)
        tables.append(used())
    import verl
    from verl.plugin.platform import PlatformRegistry, get_platform
    from verl.workers.rollout.base import _ROLLOUT_REGISTRY, get_rollout_class
    import verl.utils.distributed as distributed
    cpu = get_platform().device_name == "cpu"
    return {
        "platform": "cpu" in PlatformRegistry.registered_names(),
        "name": get_platform().device_name,
        "engine": os.environ.get("VERL_ENGINE_DEVICE"),
        "servers": sorted(name for name, _ in _ROLLOUT_REGISTRY if name.startswith("vllm-")),
        "gloo": hasattr(distributed.initialize_global_process_group_ray, "__wrapped__"),
        "adapter": get_rollout_class("vllm-scout", "async").__name__ if cpu else "",
        "imported": [name for name in sys.modules if name.endswith("vllm_async_server")],
        "tables": tables,
    }

for hardware._ACCELERATORS in ((), ("/dev/null",)):
    child = os.fork()
    if not child:
        print(json.dumps(state()), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.fixture(scope="module")
def states() -> list[dict[str, Any]]:
    """What processes of a run have after `import verl`, without an accelerator and with one."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("MARL_VERL", "VERL_"))}
    variables |= {"OMP_NUM_THREADS": "1", "MARL_VERL_RUN": "test", "MARL_VERL_POLICIES": '["scout", "mover"]'}
    done = subprocess.run([sys.executable, "-c", STATES], capture_output=True, text=True, timeout=240, env=variables)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_the_platform_is_there_in_a_run_without_an_accelerator(states: list[dict[str, Any]]) -> None:
    state = states[0]
    assert state["platform"]
    assert state["name"] == "cpu"
    assert state["engine"] == "cuda"
    assert state["gloo"]
    assert (state["adapter"], state["imported"]) == ("PolicyServerAdapter", []), "a training worker imports the server"
    assert state["servers"] == ["vllm-mover", "vllm-scout"]


def test_with_an_accelerator_only_the_servers_are_registered(states: list[dict[str, Any]]) -> None:
    state = states[1]
    assert not state["platform"]
    assert not state["gloo"]
    assert state["engine"] is None
    assert state["servers"] == ["vllm-mover", "vllm-scout"]


def test_the_device_is_cpu_to_torch_and_0_in_a_text() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("verl")
    from marl_verl.backend.verl.platforms.cpu import CPUDevice

    device = CPUDevice()
    assert device == "cpu"
    assert f"cuda:{device}" == "cuda:0"
    assert f"{device}" == "0"
    assert str(torch.ones(1).to(device).device) == "cpu"
    assert str(torch.nn.Linear(1, 1).to(device).weight.device) == "cpu"
    assert str(torch.device(device)) == "cpu"


def test_the_platform_has_every_part_of_verls_interface() -> None:
    pytest.importorskip("verl")
    from marl_verl.backend.verl.platforms.cpu import CPUPlatform

    assert not CPUPlatform.__abstractmethods__, f"PlatformBase wants more: {sorted(CPUPlatform.__abstractmethods__)}"
    module = CPUPlatform().device_module
    assert module.memory_allocated() > 0
    assert module.mem_get_info()[0] <= module.mem_get_info()[1]
    assert module.reset_peak_memory_stats() is None


def listening(kept: bool) -> set[str]:
    """The addresses on which a process with a process group listens."""
    import torch.distributed

    from marl_verl.backend.verl.platforms.vllm_plugin import keep_store_local

    def sockets() -> set[Any]:
        connections = psutil.Process().net_connections(kind="inet")
        return {connection.laddr for connection in connections if connection.status == "LISTEN"}

    before = sockets()
    if torch.distributed.is_initialized():  # of another test
        torch.distributed.group.WORLD = None
    if kept:
        keep_store_local()
    torch.distributed.init_process_group("gloo")
    torch.distributed.new_group([0])
    return {address.ip for address in sockets() - before}


@pytest.mark.parametrize(("kept", "addresses"), [(False, {"127.0.0.1", "::"}), (True, {"127.0.0.1"})])
def test_keep_store_local_works_and_is_needed(kept: bool, addresses: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": "0", "WORLD_SIZE": "1"}
    for name, value in {**variables, "GLOO_SOCKET_IFNAME": "lo"}.items():
        monkeypatch.setenv(name, value)
    assert in_fork(listening, kept) == addresses


def test_training_workers_find_each_other_below_the_ephemeral_ports() -> None:
    pytest.importorskip("verl")
    from verl.single_controller.ray import base

    from marl_verl.backend.verl.devices import rendezvous_ports

    first, end = rendezvous_ports()
    with socket.socket() as busy:
        busy.bind(("", first))
        _, port = base.get_master_addr_port._function([first, end])
    assert first < int(port) < end <= 32768
    assert len({rendezvous_ports()[0] for _ in range(20)}) > 10  # not the same for everybody


def test_importing_verl_while_ray_starts_changes_no_table_that_ray_iterates_over(states: list[dict[str, Any]]) -> None:
    nothing, first, verl = states[0]["tables"]
    assert first != nothing, (
        "backend/verl/session.py: Ray takes no notice of NOTED_BY_RAY any more, no need to import it first"
    )
    assert verl == first, (
        "backend/verl/session.py: verl imports more of Ray than before that Ray takes down (ray._common.usage); name it"
        " in NOTED_BY_RAY, or ray.init, which runs at the same time, can fail: dictionary changed size during iteration"
    )


def test_policies_and_runs_have_ranges_of_replica_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    from marl_verl.config.hardware import (
        POLICIES_VARIABLE,
        RANKS_A_POLICY,
        RUN_VARIABLE,
        first_replica_rank,
        rollout_name,
    )

    monkeypatch.setenv(POLICIES_VARIABLE, '["scout", "mover"]')
    first = []
    for run in ("one", "other"):
        monkeypatch.setenv(RUN_VARIABLE, run)
        scout, mover = (first_replica_rank(rollout_name(name)) for name in ("scout", "mover"))
        assert mover - scout == RANKS_A_POLICY
        assert 0 <= scout < 2**31 - 1000
        first.append(scout)
    assert first[0] != first[1]
