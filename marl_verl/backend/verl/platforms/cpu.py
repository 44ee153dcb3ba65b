"""verl's platform interface for a machine without an accelerator: one Ray "GPU" is one logical slot on the CPU."""

import ctypes
import os
import types
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import psutil
import torch
from verl.plugin.platform.platform_base import PlatformBase


class CPUDevice(str):
    """The "current device" of verl, which uses it as a torch device (`model.to(device)`) and as an index
    (`f"{name}:{device}"`). An int would select CUDA in the first case, so it equals "cpu" and formats as "0"."""

    def __new__(cls) -> "CPUDevice":
        return super().__new__(cls, "cpu")

    def __format__(self, spec: str) -> str:
        return "0"


def _always(value: Any) -> Callable[..., Any]:
    """A function or method that returns a constant and ignores its arguments."""

    def constant(*_: Any, **__: Any) -> Any:
        return value

    return constant


_nothing = _always(None)  # no-op on a CPU


def _resident(*_: Any) -> int:
    return int(psutil.Process().memory_info().rss)


def return_memory(*_: Any) -> None:
    """Return the memory that malloc keeps for later, up to 1 GiB after an update of 135M parameters."""
    with suppress(AttributeError):  # a C library without malloc_trim
        ctypes.CDLL(None).malloc_trim(0)


def _allocated(*_: Any) -> int:
    return_memory()
    return _resident()


def _mem_get_info(*_: Any) -> tuple[int, int]:
    memory = psutil.virtual_memory()
    return int(memory.available), int(memory.total)


def _device_module() -> types.ModuleType:
    """`torch.cpu`, with the functions that verl expects of a device module and `torch.cpu` lacks."""
    module = types.ModuleType("marl_verl.backend.verl.platforms.cpu.device")
    functions = {name: getattr(torch.cpu, name) for name in dir(torch.cpu) if not name.startswith("__")}
    functions |= dict.fromkeys(("memory_reserved", "max_memory_reserved"), _resident)
    functions |= dict.fromkeys(("reset_peak_memory_stats", "ipc_collect", "set_device", "manual_seed_all"), _nothing)
    functions |= {"memory_allocated": _allocated, "max_memory_allocated": _allocated, "empty_cache": return_memory}
    functions |= {"mem_get_info": _mem_get_info, "manual_seed": torch.manual_seed, "get_device_name": _always("CPU")}
    functions["get_rng_state"] = lambda *_: torch.get_rng_state()
    functions["set_rng_state"] = lambda state, *_: torch.set_rng_state(state)
    module.__dict__.update(functions)
    return module


class CPUPlatform(PlatformBase):
    """FSDP on gloo, weight sync through shared memory, and Ray's "GPU" resource as a logical slot."""

    device_name = vendor_name = "cpu"
    device_module = _device_module()
    device_count = _always(1)
    current_device = _always(CPUDevice())
    get_device_capability = _always((None, None))
    communication_backend_name = _always("gloo")
    visible_devices_envvar = _always("CUDA_VISIBLE_DEVICES")
    ray_resource_name = _always("GPU")  # vLLM's replica reads get_accelerator_ids()[...], with accelerator names only
    ray_noset_envvars = _always(["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"])
    is_ipc_supported = _always(False)
    set_device = synchronize = set_allocator_settings = _nothing
    empty_cache = staticmethod(return_memory)
    profiler_start = profiler_stop = cudart = _nothing
    manual_seed = manual_seed_all = staticmethod(torch.manual_seed)
    nvtx_range = nullcontext

    def is_available(self) -> bool:
        return not torch.cuda.is_available()

    def rollout_env_vars(self) -> dict[str, str]:
        return {name: os.environ[name] for name in ("VLLM_CPU_KVCACHE_SPACE",) if name in os.environ}
