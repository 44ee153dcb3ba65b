"""`marl-verl eval RUN --cross-play`: the checkpoints of a run play each other, each on both sides of the game.

With `--partner NAME`, only this agent acts with earlier checkpoints, beside the team of the last one (`partner`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from marl_verl.backend.protocol import Report
from marl_verl.errors import MarlError
from marl_verl.evaluation.request import Assignment, Pairing, Request, assign, chosen_step
from marl_verl.run.checkpoint.folders import complete, step_of
from marl_verl.team import TeamConfig, sides_of
from marl_verl_leagues.elo import interval, ratings
from marl_verl_leagues.matrix import heading, matrix
from marl_verl_leagues.partner import differences, pairings_of

__all__ = ["CrossPlay", "chosen_steps", "heading", "matrix", "pair", "pairing_result", "result"]

Outcomes = Mapping[str, float]
"""Side -> its outcome, of one episode."""


@dataclass(frozen=True)
class CrossPlay:
    """The pairings of a cross-play.

    Attributes:
        policies: policy of the evaluation -> its assignment, of all players; that of a trained one has its step in the
            name.
        pairings: those of the first row's player (by step) with each column's, then of the second row's, and so on.
    """

    sides: tuple[str, ...]
    policies: dict[str, Assignment]
    pairings: tuple[Pairing, ...]

    @property
    def first(self) -> dict[str, Assignment]:
        """Agent -> its policy in the first pairing."""
        return {agent: self.policies[policy] for agent, policy in self.pairings[0].policies.items()}


def chosen_steps(run: Path, wanted: Sequence[int] | None) -> tuple[int, ...]:
    """The steps that play each other, ascending; by default 0 and those of all complete checkpoints. MarlError: a step
    without a checkpoint, or only one step."""
    saved = [0, *map(step_of, complete(run / "checkpoints"))]
    steps = set(saved if wanted is None else [chosen_step(run, number) for number in wanted])
    if len(steps) < 2:
        raise MarlError(f"--cross-play needs at least two steps of run '{run}' to compare, but there is only {steps}")
    return tuple(sorted(steps))


def pair(team: TeamConfig, steps: Sequence[int], partner: str | None = None) -> CrossPlay:
    """Pair every step on the first side with every step on the second one. A side that plays with a frozen policy is
    the same player at every step, and plays once. An agent with `opponent` plays with the policy itself. MarlError: the
    team does not have two sides, a side has several policies, or a trained agent has no side."""
    past = {name: policy.past.of for name, policy in team.policies.items() if policy.past is not None}
    agents = {name: replace(agent, policy=past.get(agent.policy, agent.policy)) for name, agent in team.agents.items()}
    team = replace(team, agents=agents)
    assignments = {step: _named(team, assign(team, step), step) for step in steps}
    policies = {assignment.policy: assignment for own in assignments.values() for assignment in own.values()}
    if partner is not None:
        pairings = pairings_of(partner, assignments)
        playing = dict.fromkeys(name for pairing in pairings for name in pairing.policies.values())
        return CrossPlay((), {name: policies[name] for name in playing}, pairings)
    sides, members = sides_of(team.agents), team.agents.values()
    if len(sides) != 2:
        known = ", ".join(sides) or "none"
        raise MarlError(f"--cross-play needs a team of two sides, but the team has {known}. Set marl.agents.NAME.side.")
    for side in sides:
        if len(used := dict.fromkeys(agent.policy for agent in members if agent.side == side)) > 1:
            names = " and ".join(f"'{name}'" for name in used)
            raise MarlError(f"--cross-play compares policies, but side '{side}' is played by several: {names}")
    trained = {agent.name: agent.side for agent in members if team.policies[agent.policy].trained}
    if None in trained.values():
        name = next(name for name, side in trained.items() if side is None)
        raise MarlError(f"--cross-play does not know at which step the trained agent '{name}' acts. Give it a side.")
    rows, columns = (_players(team, side, assignments) for side in sides)
    neutral = {agent.name: agent.policy for agent in members if agent.side is None}
    pairings = tuple(
        Pairing(row, column, {name: {**neutral, **one, **other}[name] for name in team.agents})
        for row, one in rows.items()
        for column, other in columns.items()
    )
    return CrossPlay(sides, policies, pairings)


def _named(team: TeamConfig, own: dict[str, Assignment], step: int) -> dict[str, Assignment]:
    """The assignments of a step, with the step in the names of trained policies."""
    return {
        agent: replace(model, policy=f"{model.policy}-step-{step}") if team.policies[model.source].trained else model
        for agent, model in own.items()
    }


def _players(
    team: TeamConfig, side: str, assignments: Mapping[int, Mapping[str, Assignment]]
) -> dict[str, dict[str, str]]:
    """Player of a side, such as "player@20" -> agent of the side -> policy."""
    agents = [agent for agent in team.agents.values() if agent.side == side]
    policy = team.policies[agents[0].policy]
    labels = {step: f"{policy.name}@{step}" if policy.trained else policy.name for step in assignments}
    return {labels[step]: {agent.name: own[agent.name].policy for agent in agents} for step, own in assignments.items()}


def result(request: Request, reports: Sequence[Sequence[Report]]) -> dict[str, Any]:
    """The numbers of a cross-play, from the reports of each pairing; of a partner, its `differences`."""
    if not request.sides:
        return differences(request.pairings, [[report.rewards for report in played] for played in reports])
    pairings = [
        pairing_result(pairing, request.sides, [report.outcomes for report in own])
        for pairing, own in zip(request.pairings, reports, strict=True)
    ]
    games = {(own["row"], own["column"]): (own["wins"] + own["draws"] / 2, own["games"]) for own in pairings}
    elo = ratings(games)
    numbers = {"pairings": pairings, "elo": {name: _rating(*estimate) for name, estimate in elo.players.items()}}
    return numbers if elo.advantage is None else numbers | {"elo_first_side": _rating(*elo.advantage)}


def _rating(value: float, low: float, high: float) -> dict[str, Any]:
    return {"rating": value, "interval": (low, high)}


def pairing_result(pairing: Pairing, sides: Sequence[str], tasks: Sequence[Sequence[Outcomes]]) -> dict[str, Any]:
    """The numbers of one pairing.

    Args:
        tasks: of each task the outcomes of its episodes; failed ones are missing.
    """
    row, column = sides
    games = [outcomes for own in tasks for outcomes in own]
    means = {side: [float(np.mean([outcomes[side] for outcomes in own])) for own in tasks if own] for side in sides}
    wins = sum(outcomes[row] > outcomes[column] for outcomes in games)
    losses = sum(outcomes[row] < outcomes[column] for outcomes in games)
    return {
        "row": pairing.row,
        "column": pairing.column,
        "games": len(games),
        "wins": wins,
        "draws": len(games) - wins - losses,
        "losses": losses,
        "outcome": {side: float(np.mean(own)) if own else None for side, own in means.items()},
        "outcome_interval": {side: interval(own) for side, own in means.items()},
    }
