"""Checks of a machine: what is installed (`marl-verl doctor`), and real runs of the stack (`marl-verl selftest`)."""

__version__ = "0.1.0"
