"""Writing tasks for teams of agents: summaries and related pairs of texts."""
