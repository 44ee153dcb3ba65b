"""SHARP: a planner and its workers, rewarded by broadcast, marginal credit and tool use."""
