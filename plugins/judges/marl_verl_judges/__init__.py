"""Judges: agents that score the acts of the other agents of their team."""

__version__ = "0.1.0"
