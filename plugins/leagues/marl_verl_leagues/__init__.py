"""Leagues: agents that act with past versions of a policy."""
