"""Checkpoints: files, saving and loading, the resume fingerprint, export."""
