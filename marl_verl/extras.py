"""What the extras of `marl-verl` bring: so that a name whose plugin is missing is told with the command that brings it.

Only names; nothing here says what they are. A test compares the table with what the plugins register.
"""

from __future__ import annotations

from collections.abc import Mapping

EXTRAS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "magrpo": {
        "tasks": ("joint-code", "joint-writing", "rendezvous"),
        "workflows": ("rendezvous", "two-coders", "two-writers"),
        "samplers": ("joint-tree",),
        "advantages": ("joint",),
        "metrics": ("joint-turns",),
        "algorithms": ("magrpo", "magrpo-sessions"),
    },
    "at-grpo": {
        "tasks": ("at-final-answers", "at-plan-path", "at-plan-path-tiny"),
        "workflows": (
            "at-one-chat-walker",
            "at-one-reasoner",
            "at-one-walker",
            "at-planner-executor",
            "at-tool-caller-planner",
            "at-tool-user-reasoner",
        ),
        "rewards": ("at-bee-line", "at-bee-line-paid", "at-own-answer", "at-plan-path"),
        "samplers": ("greedy-tree",),
        "mixes": ("alpha",),
        "metrics": ("at-chosen", "at-turns"),
        "algorithms": ("at-grpo", "at-grpo-sessions"),
    },
    "mars2": {
        "tasks": ("code-with-tests", "symbol-tests"),
        "workflows": ("refine-code", "refine-symbols"),
        "samplers": ("tree-search",),
        "returns": ("shaped",),
        "metrics": ("algorithmic-diversity", "refinement", "semantic-diversity", "style-diversity"),
        "algorithms": ("mars2", "mars2-plus"),
    },
    "dr-mas": {
        "tasks": ("dr-mas-math", "dr-mas-search", "second-guess"),
        "workflows": ("dr-mas-math", "dr-mas-search", "dr-mas-search-alone", "second-guess"),
        "rewards": ("second-guess-verdict",),
        "mixes": ("penalty",),
        "metrics": ("amplification", "second-moment"),
        "algorithms": ("dr-mas",),
    },
    "sharp": {
        "tasks": ("multi-hop-paragraphs", "three-ledgers"),
        "workflows": ("multi-hop-paragraphs", "three-ledgers"),
        "credits": ("counterfactual", "shapley"),
        "mixes": ("sharp",),
        "metrics": ("worker-calls",),
        "algorithms": ("sharp",),
    },
}
"""Extra (and entry point, and the end of the distribution's name) -> kind -> names."""


def extra_of(kind: str, name: str) -> str | None:
    """The extra that brings a name, None if none does."""
    return next((extra for extra, kinds in EXTRAS.items() if name in kinds.get(kind, ())), None)
