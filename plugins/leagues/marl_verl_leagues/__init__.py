"""Leagues: agents that act with past versions of a policy, and checkpoints that play each other."""
