"""The algorithm: all parts of the method, by name where they are looked up and by value where they have options."""

from marl_verl.advantage import Algorithm

from my_method.advantage import ADVANTAGE
from my_method.credit import StepForward
from my_method.mix import TeamAndTurn

ALGORITHM = Algorithm(
    sampler="my-method-saving",
    rewards=TeamAndTurn(),
    credit=StepForward(),
    advantage=ADVANTAGE,
    loss="my-method-clip-higher",
    metrics=("my-method-sessions",),
)
"""Compared: an agent's n-th act over the sessions of one task, by the team's reward and what the turn did for it."""
