"""verl in this process, as the only rank of a training job: imports, platform, environment and process group.

Import this module before any other that imports `verl.workers`: it leaves out modules of weight transports, one of
which imports vLLM (1.2 s and 40 MB). Nothing here listens on a port or starts a process.
"""

import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from unittest import mock

from marl_verl.config.hardware import has_accelerator

TRANSPORTS = [
    f"verl.checkpoint_engine.{name}_checkpoint_engine" for name in ("nccl", "hccl", "nixl", "kimi", "mooncake", "delta")
]
"""Modules that send weights to servers in other processes. verl records the error if one of them cannot be imported."""
VARIABLES = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
VARIABLES |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}  # read by verl's workers, not used


@contextmanager
def quiet() -> Iterator[None]:
    """Hide logs below an error: engines that are not installed, deprecated arguments, files that are written."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(logging.NOTSET)


with quiet():
    missing = [name for name in TRANSPORTS if name not in sys.modules]
    sys.modules |= dict.fromkeys(missing)  # type: ignore[arg-type]  # an import raises ImportError
    try:
        from verl.workers import engine, engine_workers  # noqa: F401
    finally:
        for name in missing:
            del sys.modules[name]


def join() -> None:
    """Select verl's platform, and make this process the only rank. Later calls change nothing."""
    import torch.testing._internal.distributed.fake_pg  # noqa: F401 - registers the backend "fake"
    import transformers
    from torch import distributed
    from verl.plugin.platform import get_platform, set_platform

    from marl_verl.backend.verl.platforms.cpu import CPUPlatform

    transformers.utils.logging.disable_progress_bar()
    if not has_accelerator() and get_platform().device_name != "cpu":
        with quiet():
            set_platform(CPUPlatform())
    if not distributed.is_initialized():
        # gloo would listen on a port. With one rank every collective is the identity, which is what "fake" computes.
        distributed.init_process_group("fake", rank=0, world_size=1, store=distributed.HashStore())


def leave() -> None:
    """Undo `join`: other code of this process may begin a training job of its own. The workers cannot be used then."""
    from torch import distributed

    if distributed.is_initialized() and distributed.get_backend() == "fake":
        distributed.destroy_process_group()


@contextmanager
def environment() -> Iterator[None]:
    """Where verl's workers and their models are made: their environment variables, and nothing that they print."""
    join()
    with mock.patch.dict(os.environ, VARIABLES), redirect_stdout(io.StringIO()):
        yield
