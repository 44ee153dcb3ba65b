"""A group: the columns in which rows agree that are compared with each other."""

SAME_ACT = ("uid", "agent", "turn")
"""An agent's n-th act in the sessions of one task."""
