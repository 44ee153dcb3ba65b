"""Questions answered by teams of agents that search."""

__version__ = "0.1.0"
