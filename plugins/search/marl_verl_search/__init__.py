"""Questions answered by teams of agents that search."""
