"""Tiny models made for a run, pretrained ones from Python packages, and the demo tasks that they learn."""
