"""Files of `torch.save` in a checkpoint, read without running code that they name.

A pickle may call any function while it is loaded. `torch.load(weights_only=True)` refuses all but a short list, to
which NumPy's arrays are added here. verl loads its own files with `weights_only=False`, so `check` reads them first.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from marl_verl.errors import MarlError


def load(path: Path) -> Any:
    """Load a file of `torch.save` with tensors on the CPU. MarlError if it is damaged or names other functions."""
    import numpy as np
    import torch  # not at the top, because the command line imports the callers
    import torch.distributed.tensor

    # it warns about every sharded tensor that is loaded outside a process group
    logging.getLogger("torch.distributed.device_mesh").setLevel(logging.ERROR)
    arrays = [np.ndarray, np.dtype, *{type(np.dtype(code)) for code in np.typecodes["All"]}]
    makers = [example.__reduce__()[0] for example in (np.zeros(1), np.float64(0))]  # their module moved in NumPy 2
    with torch.serialization.safe_globals([*arrays, *makers]):
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:
            raise MarlError(f"'{path}' cannot be loaded safely: {_reason(path, error)}. {ADVICE}") from error


ADVICE = "Use another checkpoint; one that marl-verl wrote contains tensors, numbers and texts only."


def _reason(path: Path, error: Exception) -> str:
    """The functions that a file names, if they can be listed; else the first line of the error."""
    import torch

    try:
        unsafe = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(str(path)))
    except Exception:  # noqa: BLE001 - not the format of torch.save
        unsafe = []
    return f"it names {', '.join(unsafe)}" if unsafe else str(error).partition("\n")[0]


def check(folder: Path) -> None:
    """Raise MarlError if loading any file of `torch.save` below a checkpoint could run code."""
    for path in sorted(folder.rglob("*.pt")):
        load(path)
