"""Policies that an OpenAI-compatible server outside the run plays."""
