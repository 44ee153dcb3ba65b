"""The installed verl in every process of a run, also where the working directory is a checkout of verl.

`python -m` and Ray's workers search the working directory first.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from marl_verl.files import SAFE_PATH


def use_installed_verl() -> None:
    """Search the working directory last if it has another verl than the installed one, and not at all in children."""
    here = Path.cwd()
    if not (here / "verl" / "__init__.py").is_file():
        return
    elsewhere = [path for path in sys.path if _folder(path) != here]
    if PathFinder.find_spec("verl", elsewhere) is None:
        return  # this checkout is the installed one
    sys.path[:] = [*elsewhere, str(here)]
    os.environ[SAFE_PATH] = "1"
    if paths := os.environ.get("PYTHONPATH"):
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths.split(os.pathsep) if _folder(path) != here)


def _folder(path: str) -> Path:
    return Path(path or ".").resolve()
