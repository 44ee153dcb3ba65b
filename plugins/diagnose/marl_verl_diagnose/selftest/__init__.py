"""`marl-verl selftest`: real runs of the stack on this machine, each with a criterion, as tests of pytest."""
