"""vLLM's engine in a thread of its server, on a CPU: vLLM gives it a process, which loads torch and vllm once more.

That is 0.5 GiB and seconds of start-up for every server. Uses vLLM internals: `CoreEngineProcManager` takes its process
from `get_mp_context`, and `EngineCoreProc` is the engine that runs there.
"""

import logging
import multiprocessing
import os
import threading
from types import SimpleNamespace
from typing import Any

from vllm.v1.engine import EngineCoreRequestType, utils
from vllm.v1.engine.core import EngineCoreProc, EngineShutdownState

logger = logging.getLogger(__name__)


class EngineThread(threading.Thread):
    """What vLLM uses of a `multiprocessing.Process`: `start`, `is_alive`, `join`, `exitcode`, `sentinel`, ..."""

    pid = None  # vLLM kills processes that do not end in time; a thread ends with its process

    def __init__(self, target: Any, name: str, kwargs: dict[str, Any]) -> None:
        super().__init__(name=name, daemon=True)
        self.options = {key: value for key, value in kwargs.items() if not key.endswith("dp_rank")}
        self.engine: EngineCoreProc | None = None
        self.exitcode: int | None = None
        self.sentinel, self._ended = os.pipe()  # readable at its end

    def run(self) -> None:
        """As `EngineCoreProc.run_engine_core`, the target, which also sets the process's signal handlers and name."""
        code = 1
        try:
            self.engine = EngineCoreProc(**self.options)
            self.engine.run_busy_loop()
        except SystemExit:
            code = 0
        except Exception:
            logger.exception("vLLM's engine failed")
            if self.engine is not None:
                self.engine._send_engine_dead()
        finally:
            self.exitcode = code
            os.close(self._ended)
            if self.engine is not None:
                self.engine.shutdown()

    def terminate(self) -> None:
        """End the loop after the step that is running."""
        if self.engine is not None:
            self.engine.shutdown_state = EngineShutdownState.REQUESTED
            self.engine.input_queue.put_nowait((EngineCoreRequestType.WAKEUP, None))


def use_threads() -> None:
    """The engines of servers that this process starts from now on run in threads."""
    context = SimpleNamespace(Process=EngineThread, Queue=multiprocessing.Queue)
    utils.get_mp_context = lambda: context
