"""SHARP: a planner and its workers, paid by broadcast, marginal credit and tool use."""

__version__ = "0.1.0"
