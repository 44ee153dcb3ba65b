"""Workflows of the bundled tasks."""
