"""Files of `torch.save` in a checkpoint, read without running code that they name.

A pickle may call any function while it is loaded. `torch.load(weights_only=True)` refuses all but a short list, to
which NumPy's arrays are added here. verl loads its own files with `weights_only=False`, so `check` reads them first.
"""

import logging
import re
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
            refused = re.search(r"GLOBAL \S+", str(error)) or re.search(".*", str(error))
            advice = "Use another checkpoint; one that marl-verl wrote contains tensors, numbers and texts only."
            raise MarlError(f"'{path}' cannot be loaded safely: {refused and refused[0]}. {advice}") from error


def check(folder: Path) -> None:
    """Raise MarlError if loading any file of `torch.save` below a checkpoint could run code."""
    for path in sorted(folder.rglob("*.pt")):
        load(path)
