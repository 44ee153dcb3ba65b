"""The processes of a run: its directory, events, supervision, crash detection and cleanup."""
