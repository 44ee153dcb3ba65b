"""A run: its plan, directory, processes and checkpoints."""
