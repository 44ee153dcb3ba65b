"""Self-play in zero-sum games: Kuhn Poker, with its exact solution."""

__version__ = "0.1.0"
