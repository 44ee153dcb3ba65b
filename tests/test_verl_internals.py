"""All internals of verl, vLLM and Ray that marl-verl uses: a change there fails a test by name."""

import importlib
import importlib.metadata
import importlib.util
import inspect
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SERVER = "verl/workers/rollout/vllm_rollout/vllm_async_server.py"
IMPORTED = "            from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm"  # when it is called
SOCKET = "ipc:///tmp/rl-colocate-zmq-{job_id}-replica-{%sreplica_rank}-rank-{%s}.sock"
SOURCES: dict[str, list[tuple[str, str]]] = {  # what relies on it -> (file, text in it)
    "alias_vllm_version": [("verl/utils/vllm/vllm_quant_utils.py", 'importlib.metadata.version("vllm")')],
    "default_process_group_to_gloo": [
        ("verl/utils/distributed.py", 'backend or f"cpu:gloo,{get_device_name()}:{get_nccl_backend()}"')
    ],
    "keep_seeds": [
        ("vllm/v1/sample/ops/topk_topp_sampler.py", "if len(generators) != logits.shape[0] and"),
        ("vllm/v1/sample/ops/topk_topp_sampler.py", "self.forward = self.forward_cpu"),
    ],
    "keep_linear_weights": [
        ("vllm/model_executor/layers/utils.py", "cpu_linear"),
        ("vllm/model_executor/layers/linear.py", IMPORTED),
        ("vllm/model_executor/layers/vocab_parallel_embedding.py", IMPORTED),
    ],
    "backend/verl/session.py: LOOPBACK": [
        ("ray/_private/services.py", "not ray_constants.ENABLE_RAY_CLUSTER"),
        ("ray/_private/ray_constants.py", 'ENABLE_RAY_CLUSTERS_ENV_VAR = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"'),
    ],
    "backend/verl/devices.py: rendezvous_ports": [
        ("verl/single_controller/ray/base.py", 'self._ray_master_port_range = kwargs.pop("master_port_range", None)')
    ],
    "backend/verl/verl_plugin.py": [
        ("verl/workers/rollout/base.py", '("vllm", "async"): "'),
        ("verl/workers/rollout/base.py", "_ROLLOUT_REGISTRY[(rollout_name, mode)]"),
        ("verl/workers/rollout/vllm_rollout/vllm_rollout.py", SOCKET % ("self.", "local_rank")),
        ("verl/workers/rollout/vllm_rollout/utils.py", SOCKET % ("", "trainer_rank")),
    ],
    "backend/verl/vllm_servers.py": [
        (SERVER, "self._server_port, self._server_task = await run_uvicorn(app, args, self._server_address)"),
        (SERVER, "self.server_class = ray.remote(vLLMHttpServer)"),
        # servers of frozen policies are in this mode: they keep their weights while they sleep
        (SERVER, "RolloutMode.COLOCATED:\n            await self.engine.sleep(level=1)"),
    ],
    "PolicyClient finds out why an action ended": [
        (SERVER, 'if finish_reason == "abort":'),
        (SERVER, 'elif finish_reason in ("stop", "length"):'),
        (SERVER, "SamplingParams(max_tokens=max_tokens, **sampling_params)"),
    ],
}


@pytest.mark.parametrize("user", SOURCES)
def test_verl_vllm_and_ray_do_what_we_replace_or_rely_on(user: str) -> None:
    for file, text in SOURCES[user]:
        package, _, path = file.partition("/")
        spec = importlib.util.find_spec(package)
        if spec is None:
            pytest.skip(f"{package} is not installed")
        (folder,) = spec.submodule_search_locations or ()
        assert text in (Path(folder) / path).read_text(), f"{user}: {file} has changed"


PARAMETERS = {  # where -> signatures there
    "verl.utils.distributed:initialize_global_process_group_ray": "(timeout_second, backend)",
    "vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm": "(layer, remove_weight)",
    "verl.utils.model:get_generation_config": "(model, trust_remote_code)",
    "verl.single_controller.base:Worker": "_query_dispatch_info(self, mesh_name)",
    "verl.utils.tracking:Tracking": (
        "__init__(self, project_name, experiment_name, default_backend, config) log(self, data, step, backend) "
        "finish(self, exit_code)"
    ),
    "verl.workers.rollout.llm_server:LLMServerClient": (
        "_acquire_server(self, request_id, extra) _release_server(self, server_id, request_id)"
    ),
    "verl.workers.rollout.llm_server:LLMServerManager": (
        "_initialize_llm_servers(self, start_rank) _init_global_load_balancer(self) "
        "get_client(self, client_cls, kwargs)"
    ),
    "verl.workers.rollout.replica:RolloutReplicaRegistry": "register(name, loader) get(name)",
    "verl.workers.rollout.vllm_rollout:ServerAdapter": (
        "__init__(self, config, model_config, device_mesh, replica_rank) _get_server_name_prefix(self) "
        "update_weights(self, weights, global_steps, wire_format, kwargs)"
    ),
    "verl.workers.rollout.vllm_rollout.utils:vLLMColocateWorkerExtension": (
        "update_weights_from_ipc(self, peft_config, base_sync_done, use_shm)"
    ),
    "verl.workers.engine_workers:ActorRolloutRefWorker": (
        "__init__(self, config, role, distillation_config, kwargs) set_loss_fn(self, loss_fn) "
        "update_weights(self, global_steps, mode)"
    ),
    "verl.workers.engine_workers:TrainingWorker": "__init__(self, config) reset(self)",
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngine": (
        "_build_lora_module(self, module) _build_optimizer(self, module) _build_lr_scheduler(self, optimizer) "
        "get_per_tensor_param(self, layered_summon, base_sync_done, kwargs)"
    ),
    "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMReplica": (
        "_get_server_name_prefix(self) init_hybrid(self, worker_group) launch_servers(self)"
    ),
    "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServer": (
        "collective_rpc(self, method, timeout, args, kwargs) clear_kv_cache(self) "
        "set_global_steps(self, global_steps) _preprocess_engine_kwargs(self, engine_kwargs) "
        "_get_worker_extension_cls(self) run_headless(self, args) "
        "launch_server(self, master_address, master_port, dp_rpc_port)"
    ),
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner": (
        "reload_weights(self, weights_iterator, weights_path, is_checkpoint_format)"
    ),
}


@pytest.mark.parametrize("target", PARAMETERS)
def test_what_we_override_or_call_in_verl_is_where_it_was(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("verl")
    from marl_verl.backend.verl.platforms import vllm_plugin as workarounds

    monkeypatch.setattr(importlib.metadata, "version", importlib.metadata.version)  # put back after the test
    workarounds.alias_vllm_version()  # verl's vLLM modules ask for it when they are imported
    module, _, name = target.partition(":")
    owner = getattr(importlib.import_module(module), name, None)
    assert owner is not None, f"verl moved {target}"
    for signature in PARAMETERS[target].replace(") ", ")\n").splitlines():
        method = signature.partition("(")[0]
        found = getattr(owner, method, None) if method else owner
        assert found is not None, f"verl moved or renamed {target}.{method}"
        # Ray adds a parameter to the methods of classes of which it has made an actor
        parameters = [name for name in inspect.signature(found).parameters if name != "_ray_trace_ctx"]
        assert f"{method}({', '.join(parameters)})" == signature, target


def test_what_ends_a_turn_in_the_servers() -> None:
    """`PolicyClient` finds the end of an action in its tokens and its text, by vLLM's rules."""
    pytest.importorskip("vllm")
    from vllm import SamplingParams
    from vllm.v1.engine.detokenizer import check_stop_strings

    from marl_verl.models.chat import before_stop

    params = SamplingParams(stop_token_ids=[9], stop=["END"])
    params.update_from_generation_config({"eos_token_id": [7, 8]}, 7)
    assert set(params.stop_token_ids or ()) == {8, 9}  # 7 is the tokenizer's own
    assert not params.include_stop_str_in_output
    for text, stop in (("a b c", ["c", "b"]), ("abc", ["bc", "abc"]), ("abc", ["abc", "bc"]), ("abc", ["abc", "b"])):
        found = check_stop_strings(text, len(text), stop, include_in_output=False)
        assert found is not None
        assert text[: found[1]] == before_stop(text, stop)
    assert check_stop_strings("abc", 3, ["d"], include_in_output=False) is before_stop("abc", ["d"]) is None


def test_a_server_asks_its_slots_only_for_their_location() -> None:
    """`backend/verl/devices.py` answers in the place of training workers."""
    folder = Path(pytest.importorskip("verl").__file__).parent / "workers" / "rollout"
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
