"""A script that plays a Nash equilibrium of Kuhn Poker, as a fixed opponent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from marl_verl_self_play.kuhn import equilibrium, legal_moves
from marl_verl_self_play.kuhn_poker import PLAYERS, observations

INFORMATION_SET = {
    text: name
    for player in range(len(PLAYERS))
    for brief in (False, True)
    for name, text in observations(player, brief=brief).items()
}
"""Observation, brief or not -> information set."""
BETS = equilibrium(1 / 6)  # information set -> P(bet or call)


def kuhn_equilibrium(messages: Sequence[Mapping[str, Any]], random: Random) -> str:
    """The move of a player of the equilibrium with alpha = 1/6, drawn with its probabilities."""
    name = INFORMATION_SET[messages[-1]["content"]]
    return legal_moves(name[1:])[random.random() < BETS[name]]
