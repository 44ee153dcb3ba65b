"""SHARP: a planner and its workers, rewarded by broadcast, marginal credit and tool use."""

__version__ = "0.1.0"
