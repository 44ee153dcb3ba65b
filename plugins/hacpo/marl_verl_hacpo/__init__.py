"""HACPO: policies of different models learn from each other's rollouts."""
