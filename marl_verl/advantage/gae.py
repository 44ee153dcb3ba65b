"""Generalised advantage estimation over an agent's turns: a critic's values in place of the others of a group.

    delta_t = r_t + gamma V(o_{t+1}) - V(o_t)              V after the agent's last turn is 0
    A_t     = sum_{l >= 0} (gamma lam)^l delta_{t+l}
    target  = A_t + V(o_t)                                 what the critic is trained towards

Schulman et al. 2016 (arXiv 1506.02438, equations 11 to 16), with a turn as the action and t counting the agent's own
turns in the session, by index. V(o) is one number a turn, of the observation before the action. With lam = 1, A_t is
the discounted return minus V(o_t); with lam = 0 it is the TD error delta_t.

The next value is that of the agent's own next turn, also where the critic sees what the whole team has seen (MAPPO,
arXiv 2103.01955): rewards are on the rows of the agent that earned them, so what follows a turn is what the same agent
earns from its next turn on. Turns of an agent that acts in several lanes at once follow each other by index, as in
`Discounted`: the team reward counts on the last of all its turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_verl.advantage.groups import combine
from marl_verl.advantage.returns import Returns, Scope, check_gamma, last_turns, sum_to_go
from marl_verl.advantage.rows import BoolArray, FloatArray, RowTable
from marl_verl.errors import MarlError


@dataclass(frozen=True)
class GAE(Returns):
    """A_t = sum_l (gamma lam)^l delta_{t+l}, delta_t = r_t + gamma V_{t+1} - V_t over the agent's own turns.

    V is column `value` of the rows, from a critic (marl.critic); V after the last turn is 0. An agent without values,
    whose policy is frozen, has A = 0: nobody learns from its rows.

    Attributes:
        gamma: discount of a turn.
        lam: how far rewards are believed over the critic: 1 sums them all up, 0 looks one turn ahead.
        critic: "policy": a critic for each policy, on what the agent sees; "team": one on what the team has seen.
    """

    name: ClassVar[str] = "gae"
    gamma: float = 1.0
    lam: float = 0.95
    critic: Scope = "policy"
    sums_turns = True
    of = "sessions"

    def __post_init__(self) -> None:
        check_gamma(self.gamma)
        if not 0 <= self.lam <= 1:
            raise MarlError(f"'lam' must be between 0 and 1, got {self.lam}")

    def wants_critic(self) -> Scope:
        return self.critic

    def team_rows(self, table: RowTable) -> BoolArray:
        """[n] each agent's last turn in the session."""
        return last_turns(table)

    def compute(self, table: RowTable, reward: FloatArray) -> FloatArray:
        """A of every row, [n]. MarlError if no row has a value, or an agent has them on some rows only."""
        return self.stages(table, reward)[-1][1]

    def stages(self, table: RowTable, reward: FloatArray) -> list[tuple[str, FloatArray]]:
        """V, the TD error delta, the target and A, each [n]. MarlError as `compute`."""
        there = valued(table)
        value, reward = np.where(there, table.values, 0.0), np.where(there, reward, 0.0)
        turns = combine([table.uid.codes, table.session, table.agent.codes], len(table))
        order = np.lexsort((table.index, turns))
        turns, v = turns[order], value[order]
        goes_on = np.append(turns[1:] == turns[:-1], False)
        delta, back = np.empty(len(table)), np.empty(len(table))
        delta[order] = reward[order] + self.gamma * np.where(goes_on, np.append(v[1:], 0.0), 0.0) - v
        back[order] = sum_to_go(delta[order], turns, self.gamma * self.lam)
        return [("value", value), ("TD error", delta), ("value target", back + value), (f"returns: {self.name}", back)]

    def target(self, table: RowTable, ret: FloatArray) -> FloatArray:
        """[n] A + V; 0 where there is no value."""
        return ret + np.where(valued(table), table.values, 0.0)


def valued(table: RowTable) -> BoolArray:
    """[n] which rows have a value. MarlError if none has, or an agent has them on some of its rows only."""
    there: BoolArray = ~np.isnan(table.values)
    if not there.any():
        raise MarlError("no row has a 'value': returns 'gae' need those of a critic (marl.critic)")
    having = np.bincount(table.agent.codes, weights=there)[table.agent.codes] > 0
    lacking = having & ~there
    if lacking.any():
        row = int(np.argmax(lacking))
        raise MarlError(
            f"row '{table.key(row)}' lacks 'value', which other rows of agent '{table.agent.value(row)}' have: "
            "returns 'gae' need a critic's (marl.critic) for all of them"
        )
    return there
