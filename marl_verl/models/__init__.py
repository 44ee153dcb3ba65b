"""Tiny models for a CPU: made on the spot, warmed up on demonstrations, cached by content."""
