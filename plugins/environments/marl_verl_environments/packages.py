"""The packages whose environments these are: each is imported when a run first uses it."""

from __future__ import annotations

import importlib
from typing import Any

from marl_verl.errors import MarlError


def required(module: str) -> Any:
    """Import a module of an optional package. MarlError with the pip command if it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        which = "marl-verl-environments[verifiers]" if module.startswith("verifiers") else "marl-verl[environments]"
        raise MarlError(f'{module} cannot be imported ({error}): pip install "{which}"') from error
