"""Writing tasks for teams of agents: summaries and related pairs of texts."""

__version__ = "0.1.0"
