"""Programs written and tested by teams of agents."""
