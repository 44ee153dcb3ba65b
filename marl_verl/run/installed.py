"""The installed verl in every process of a run, also where the working directory is a checkout of verl.

`python -m` and Ray's workers search the working directory first.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

SAFE = "PYTHONSAFEPATH"
"""With this variable Python does not search the working directory, nor that of a script."""


def use_installed_verl() -> None:
    """Search the working directory last if it has another verl than the installed one, and not at all in children."""
    here = Path.cwd()
    if not (here / "verl" / "__init__.py").is_file():
        return
    elsewhere = [path for path in sys.path if _folder(path) != here]
    if PathFinder.find_spec("verl", elsewhere) is None:
        return  # this checkout is the installed one
    sys.path[:] = [*elsewhere, str(here)]
    os.environ[SAFE] = "1"
    if paths := os.environ.get("PYTHONPATH"):
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths.split(os.pathsep) if _folder(path) != here)


def safe_job() -> dict[str, Any]:
    """Arguments of `ray.init` with which workers do not search the driver's folders, where this process does not.

    Uses an internal of Ray: it adds them only for jobs without a working directory of their own.
    """
    if not os.environ.get(SAFE):
        return {}
    from ray.job_config import JobConfig

    job: Any = JobConfig()
    job._runtime_env_has_working_dir = lambda: True
    return {"job_config": job}


def _folder(path: str) -> Path:
    return Path(path or ".").resolve()
