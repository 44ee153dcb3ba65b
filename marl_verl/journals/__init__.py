"""Episodes on disk: written by a run, read without one."""
