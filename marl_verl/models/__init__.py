"""Models: chat templates, parsers of answers, sizes, and the sources from which distributions make models."""

from typing import Any

from marl_verl.extensions import extension


def __getattr__(name: str) -> Any:
    """What was here before (`marl_verl.moved`)."""
    if (moved := extension("moved", f"{__name__}.{name}")) is None:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return moved
