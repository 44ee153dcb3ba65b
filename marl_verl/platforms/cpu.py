"""verl's platform interface for a machine without an accelerator: one Ray "GPU" is one logical slot on the CPU."""

from __future__ import annotations

import os
import types
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from verl.plugin.platform.platform_base import PlatformBase


class CPUDevice(str):
    """What verl gets as "current device".

    verl uses it as a torch device (`model.to(device)`) and as an index (`f"{name}:{device}"`): an int would send the
    first to CUDA, so it equals "cpu" and prints as 0 in the second.
    """

    def __new__(cls) -> CPUDevice:
        return super().__new__(cls, "cpu")

    def __format__(self, spec: str) -> str:
        return "0"


def _nothing(*_: Any, **__: Any) -> None:
    """What a CPU has no use for."""


def _device_module() -> types.ModuleType:
    """`torch.cpu`, with the memory calls verl expects of a device module and `torch.cpu` lacks."""

    def resident(*_: Any) -> int:
        return int(psutil.Process().memory_info().rss)

    def mem_get_info(*_: Any) -> tuple[int, int]:
        memory = psutil.virtual_memory()
        return int(memory.available), int(memory.total)

    module = types.ModuleType("marl_verl.platforms.cpu.device")
    names = {name: getattr(torch.cpu, name) for name in dir(torch.cpu) if not name.startswith("__")}
    resident_names = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
    names |= dict.fromkeys(resident_names, resident)
    unused_names = ("empty_cache", "reset_peak_memory_stats", "ipc_collect", "set_device", "manual_seed_all")
    names |= dict.fromkeys(unused_names, _nothing)
    names |= {"mem_get_info": mem_get_info, "manual_seed": torch.manual_seed, "get_device_name": lambda *_: "CPU"}
    names["get_rng_state"] = lambda *_: torch.get_rng_state()
    names["set_rng_state"] = lambda state, *_: torch.set_rng_state(state)
    module.__dict__.update(names)
    return module


class CPUPlatform(PlatformBase):
    """FSDP on gloo, weights to the server through shared memory, Ray's "GPU" resource as a logical slot."""

    device_name = vendor_name = "cpu"
    device_module = _device_module()

    def is_available(self) -> bool:
        return not torch.cuda.is_available()

    def current_device(self) -> Any:
        return CPUDevice()

    def device_count(self) -> int:
        return 1

    set_device = synchronize = set_allocator_settings = empty_cache = _nothing
    profiler_start = profiler_stop = cudart = _nothing

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Any:
        yield

    def ray_resource_name(self) -> str:
        # vLLM's replica reads get_accelerator_ids()[...], which knows accelerator names only
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False

    def rollout_env_vars(self) -> dict[str, str]:
        return {"VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")}
