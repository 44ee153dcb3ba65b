"""Starts Ray, TransferQueue, policies and rollout workers, watches their processes, and shuts them down."""

import gc
import importlib
import os
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from marl_verl.backend.protocol import Backend, Host, endpoints, reported
from marl_verl.backend.verl import forked_workers
from marl_verl.backend.verl.watch import QUEUE, Watch, queue_actors
from marl_verl.config.hardware import cpu_run, on_gpu, ray_address
from marl_verl.config.placement import check_cpus, check_room, pools_of, ray_cpus
from marl_verl.config.stored import team_of
from marl_verl.errors import MarlError, check
from marl_verl.events import SCRATCH_VARIABLE, Phases, emit
from marl_verl.files import SAFE_PATH

FORWARDED = (
    *("MARL_VERL_", "VLLM_", "VERL_", "HF_", "RAY_EXPERIMENTAL_NOSET", "OMP_", "TOKENIZERS_", "TRANSFER_QUEUE_"),
    *("NCCL_", "GLOO_", "TORCH"),
)
"""Prefixes of the environment variables that workers on a running Ray cluster get besides verl's own."""
LOOPBACK = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray then listens on 127.0.0.1, as it does on those systems
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "VLLM_HOST_IP": "127.0.0.1",
}
"""Environment of a run on one machine, unless the user has set it: nothing listens on the network."""
RAY = {
    "RAY_worker_niceness": "0",  # Ray's default is 15: workers would wait for every other process of the machine
    "RAY_task_events_report_interval_ms": "0",  # no record of past calls, with which gcs_server grew by 3.8 KB a call
}
"""Settings of a Ray session that the run starts itself, unless the user has set them."""
NOTED_BY_RAY = "ray.experimental.state.api"
"""Imported before `ray.init`: importing it (verl does) changes a table of Ray's over which `ray.init` iterates."""
STARTING = 900.0  # seconds until the first worker works, with the packages that it may have to install
PATIENCE = 10.0  # seconds to wait for the cluster's head node; Ray itself waits for minutes


@contextmanager
def opened(config: Any, phase: Phases, host: Host) -> Iterator[Backend]:
    """The backend of a run on Ray; Ray is shut down at the end of the block."""
    emit("phase", name="starting Ray and loading verl")
    if ray_address(config):
        send_token()
    else:
        for name, value in (LOOPBACK | RAY).items():
            os.environ.setdefault(name, value)
        if cpu_run():
            # set here because importing verl's function takes seconds; its other variables are for GPUs
            os.environ["VLLM_LOGGING_LEVEL"] = "WARN"
            if sys.platform == "linux":
                forked_workers.start(f"{os.environ[SCRATCH_VARIABLE]}/forks")
    import ray

    if not ray_address(config):  # a plugin may have imported Ray before its variable was set
        constants: Any = importlib.import_module("ray._private.ray_constants")
        constants.ENABLE_RAY_CLUSTER = False
    importlib.import_module(NOTED_BY_RAY)
    with ThreadPoolExecutor(max_workers=1) as threads:
        verl = threads.submit(importlib.import_module, "marl_verl.backend.verl.policies")
        try:
            start_ray(config)
            threads.submit(importlib.import_module, "marl_verl.backend.verl.vllm_servers")  # needed soon
            verl.result()
            with Watch({}, lambda: "while starting", host)():  # Ray's own processes
                policies, rollouts, store = _bring_up(config, host)
            gc.freeze()  # at its end, Python would look for garbage in what is loaded, for seconds
            actors = {**policies.actors(), **rollouts.actors(), **queue_actors()}
            with Watch(actors, phase.describe, host)():
                yield Backend(policies, rollouts, store)
            importlib.import_module("transfer_queue").close()
        finally:
            ray.shutdown()


def _bring_up(config: Any, host: Host) -> tuple[Any, Any, Any]:
    """Start the slow parts concurrently: TransferQueue, policies, and where possible the rollout workers."""
    import transfer_queue as tq

    from marl_verl.backend.verl.policies import RayPolicies, single_server
    from marl_verl.backend.verl.rollouts import QueueStore, RayRollouts

    def perform(start: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return start(*arguments)
        except Exception as error:  # noqa: BLE001 - raising it would wait for what starts beside it
            host.leave(reported(error))

    store = QueueStore()
    policies = RayPolicies(config, team_of(config), store)
    emit("phase", name="starting policies")
    with ThreadPoolExecutor(max_workers=2) as threads:
        queue = threads.submit(perform, tq.init, config.transfer_queue)
        starting = threads.submit(policies.start, perform)
        perform(first_worker, queue)
        if not all(single_server(runtime.section) for runtime in policies.servers):  # else their names are known
            starting.result()
        rollouts = perform(RayRollouts, config, policies.clients())
        starting.result()
    emit("started")
    return policies, rollouts, store


def first_worker(queue: "Future[Any]", seconds: float = STARTING) -> None:
    """Wait for TransferQueue, in Ray's first worker. RuntimeError if none starts: Ray would try again without end."""
    try:
        queue.result(seconds)
    except TimeoutError as error:
        why = "workers end while they start (their errors are in the log), or the cluster has no free CPU"
        raise RuntimeError(f"Ray has started no worker in {seconds:g} s: {why}") from error


def start_ray(config: Any) -> None:
    """Start a separate Ray session, or connect to the cluster in `ray_kwargs.ray_init.address`."""
    import ray

    options: dict[str, Any] = OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True)  # type: ignore[assignment]
    wanted = {name: value for name, value in (options.pop("runtime_env", None) or {}).items() if value is not None}
    os.environ["TRANSFER_QUEUE_ENABLE"] = "1"
    options.pop("address", None)
    options |= safe_job()
    if address := ray_address(config):
        from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

        runtime_env = get_ppo_ray_runtime_env(config)
        variables = {name: value for name, value in os.environ.items() if name.startswith(FORWARDED)}
        variables.pop("MARL_VERL_EVENTS", None)  # a file descriptor of this process
        for endpoint in endpoints(config).values():  # workers get keys by other means: Ray shows these variables
            variables.pop(endpoint.key_variable or "", None)
        runtime_env["env_vars"] = {**runtime_env.get("env_vars", {}), **variables, **wanted.pop("env_vars", {})}
        connect(address, runtime_env={**runtime_env, **wanted}, **options)
    else:
        pools = pools_of(config, team_of(config))
        cpus = max(os.cpu_count() or 1, ray_cpus(config, pools))
        options["num_cpus"] = options.get("num_cpus") or cpus  # logical: more than there are do no harm
        if cpu_run():
            options.setdefault("num_gpus", sum(pool.size for pool in pools))
        else:
            from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

            os.environ.update(get_ppo_ray_runtime_env(config).get("env_vars", {}))
        # "local": never connect to a Ray session that is already running. Workers inherit this environment.
        scratch = os.environ.get(SCRATCH_VARIABLE)
        folder = scratch and f"{scratch}/ray"  # Ray makes its folder writable for all users; the scratch folder is not
        options.setdefault("include_dashboard", False)
        ray.init(address="local", _temp_dir=folder, runtime_env=wanted or None, **options)
    check_slots(config)


def send_token() -> None:
    """Send the token of this machine, unless the user has chosen a mode. Call this before Ray is imported. A machine
    with a token has a `ray start --head` that requires it, and Ray sends it by itself for the address "auto" only. A
    cluster without a token accepts a driver that sends one."""
    named = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if named or (Path.home() / ".ray" / "auth_token").is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def connect(address: str, **options: Any) -> None:
    """`ray.init` for a running cluster. MarlError if none answers at the address."""
    import ray
    from ray._private.services import canonicalize_bootstrap_address

    key = f"ray_kwargs.ray_init.address={address}"
    try:
        head = str(canonicalize_bootstrap_address(address))
        host, _, port = head.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()
    except (OSError, ValueError) as error:
        remedy = "Start one with `ray start --head`, or leave the key out to run on this machine only"
        raise MarlError(f"no Ray cluster answers ({key}): {str(error).split('. ')[0]}. {remedy}") from error
    ray.init(address=head, **options)


def safe_job() -> dict[str, Any]:
    """Arguments of `ray.init` with which workers do not search the driver's folders, where this process does not. Uses
    an internal of Ray: it adds them only for jobs without a working directory of their own."""
    if not os.environ.get(SAFE_PATH):
        return {}
    from ray.job_config import JobConfig

    job: Any = JobConfig()
    job._runtime_env_has_working_dir = lambda: True
    return {"job_config": job}


@check
def check_slots(config: Any) -> Iterator[str]:
    """MarlError if another run uses the cluster; if Ray lacks GPUs (logical slots on a CPU) or CPUs: it would wait for
    them for ever; and if the run would leave the accelerators of a cluster idle."""
    import ray

    with suppress(ValueError):  # no such actor: the cluster is free
        ray.get_actor(*QUEUE)
        used = f"another run uses the Ray cluster (ray_kwargs.ray_init.address={ray_address(config)})"
        remedy = "Wait until that run has ended, or start a cluster for each run"
        yield f"{used}, and TransferQueue would mix their rows. {remedy}"
    pools = pools_of(config, team_of(config))
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    # Ray adds `accelerator_type:NAME` to the resources of nodes with a real accelerator; `GPU` may be a logical one
    real = any(name.startswith("accelerator_type:") for node in nodes for name in node)
    if ray_address(config) and real and not on_gpu(config):
        yield "the Ray cluster has accelerators, and this machine has none: add hardware=gpu to the command"
    resource = "NPU" if str(config.trainer.device) == "npu" else "GPU"
    check_room(pools, [node.get(resource, 0) for node in nodes], "Ray has")
    check_cpus(config, pools, [node.get("CPU", 0) for node in nodes])
