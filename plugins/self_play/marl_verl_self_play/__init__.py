"""Self-play in zero-sum games: Kuhn Poker, with its exact solution."""
