"""The names that each extra of `marl-verl` brings: an unknown name gets the command that installs its plugin.

A test compares the table with what the plugins register.
"""

from __future__ import annotations

from collections.abc import Mapping

EXTRAS: Mapping[str, str] = {
    "magrpo": "magrpo magrpo-sessions joint joint-tree joint-turns joint-code joint-writing rendezvous two-coders "
    "two-writers",
    "at-grpo": "at-grpo at-grpo-sessions alpha greedy-tree at-chosen at-turns at-final-answers at-plan-path "
    "at-plan-path-tiny at-one-chat-walker at-one-reasoner at-one-walker at-planner-executor at-tool-caller-planner "
    "at-tool-user-reasoner at-bee-line at-bee-line-paid at-own-answer",
    "mars2": "mars2 mars2-plus shaped tree-search algorithmic-diversity refinement semantic-diversity "
    "style-diversity code-with-tests symbol-tests refine-code refine-symbols",
    "dr-mas": "dr-mas penalty amplification second-moment dr-mas-math dr-mas-search dr-mas-search-alone second-guess "
    "second-guess-verdict",
    "sharp": "sharp counterfactual shapley worker-calls multi-hop-paragraphs three-ledgers",
}
"""Extra (and entry point, and the end of the distribution's name) -> names of any kind."""


def extra_of(name: str) -> str | None:
    """The extra that brings a name, None if none does."""
    return next((extra for extra, names in EXTRAS.items() if name in names.split()), None)
