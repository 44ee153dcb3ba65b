"""An error that ends a run, in one line."""

from __future__ import annotations

import errno
import re
import traceback

from marl_verl.errors import MarlError, format_error
from marl_verl.events import emit

SMALLER = (
    "lower actor.ppo_max_token_len_per_gpu, rollout.engine_kwargs.vllm.kv_cache_memory_bytes (servers on a CPU) or "
    "data.train_batch_size, or let agents share a policy"
)


def reported(error: Exception) -> int:
    """Send an error to the command line and write its traceback to the log. Returns the exit code."""
    expected = isinstance(error, MarlError)
    emit("error", message=str(error) if expected else one_line(error), expected=expected)
    traceback.print_exc()
    return 2 if expected else 1


def one_line(error: BaseException) -> str:
    """One-line message for an unexpected error. The last line of Ray's message is the error in the other process."""
    kinds = {
        kind.__name__ for kind in type(error).__mro__ if kind.__module__.startswith("ray.")
    }  # without importing it
    if "OutOfMemoryError" in kinds:
        return f"a Ray process died: {out_of_memory(error)}"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        free = "Free some space, or lower marl.checkpoint.keep, marl.run.journal_tasks or marl.run.keep_rows"
        return f"{format_error(error)}: the disk or a quota is full. {free}"
    if "The current node timed out during startup" in str(error):  # of `ray.init`
        return "Ray did not start within 30 s: the machine is too busy. End other programs and start the run again"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "RayActorError" in kinds and not getattr(error, "actor_init_failed", False):
        details = dict(re.findall(r"^\s*(class_name|pid): (\S+)$", str(error), flags=re.MULTILINE))
        which = f" ({details.get('class_name', 'unknown')}, process {details['pid']})" if "pid" in details else ""
        return f"a Ray actor{which} died: killed or out of memory"
    return f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"


def out_of_memory(error: BaseException) -> str:
    """What Ray's memory monitor says, in one line."""
    users = re.findall(r"^\d+\t([\d.]+)\t(.+)$", str(error), flags=re.MULTILINE)[:5]
    largest = ", ".join(f"{command.strip()[:60]} {size} GB" for size, command in users)
    return f"out of memory, killed by Ray; largest processes: {largest or 'see train.log'}; {SMALLER}"
