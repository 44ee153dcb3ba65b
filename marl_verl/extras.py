"""What the extras of `marl-verl` bring: so that a name whose plugin is missing is told with the command that brings it.

Only names; nothing here says what they are. A test compares the table with what the plugins register.
"""

from __future__ import annotations

from collections.abc import Mapping

EXTRAS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "magrpo": {
        "samplers": ("joint-tree",),
        "advantages": ("joint",),
        "algorithms": ("magrpo", "magrpo-sessions"),
    },
    "at-grpo": {
        "samplers": ("greedy-tree",),
        "mixes": ("alpha",),
        "algorithms": ("at-grpo", "at-grpo-sessions"),
    },
    "mars2": {
        "samplers": ("tree-search",),
        "returns": ("shaped",),
        "algorithms": ("mars2", "mars2-plus"),
    },
    "dr-mas": {
        "mixes": ("penalty",),
        "metrics": ("amplification",),
        "algorithms": ("dr-mas",),
    },
    "sharp": {
        "credits": ("counterfactual", "shapley"),
        "mixes": ("sharp",),
        "algorithms": ("sharp",),
    },
}
"""Extra (and entry point, and the end of the distribution's name) -> kind -> names."""


def extra_of(kind: str, name: str) -> str | None:
    """The extra that brings a name, None if none does."""
    return next((extra for extra, kinds in EXTRAS.items() if name in kinds.get(kind, ())), None)
