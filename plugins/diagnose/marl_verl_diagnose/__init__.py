"""Checks of a machine: what is installed (`marl-verl doctor`), and real runs of the stack (`marl-verl selftest`)."""
