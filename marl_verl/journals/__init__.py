"""Stored episodes: files that a run writes and `marl-verl replay` reads."""
