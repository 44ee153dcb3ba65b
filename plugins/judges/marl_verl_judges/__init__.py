"""Judges: agents that score the acts of the other agents of their team."""
