"""Algorithms, one file a method: each is a preset of parts, and holds what only that method needs."""
