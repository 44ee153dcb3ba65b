"""Distillation: a single agent learns what a team does, by imitation and then by reward."""
