"""Programs written and tested by teams of agents."""

__version__ = "0.1.0"
