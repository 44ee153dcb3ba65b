"""Evaluations that compare teams by pairs (docs/evaluation.md): `chosen_steps` and `pair` plan one, `result` has its
numbers.

Cross-play: the checkpoints of a run play each other, each on both sides of the game. A partner: the team of the last
step plays beside its policy of each step. An edit (docs/replay.md): both arms have the same sessions and seeds, and
begin with the effects of the stored episode before the act; other acts of the same joint move did not see it and stay.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from marl_verl_inspect.episodes import file_of_episode
from marl_verl_inspect.replay import differences as replay_differences
from marl_verl_inspect.replay import replay

from marl_verl.backend.protocol import Report
from marl_verl.episode import Action, ActRecord, Journal
from marl_verl.episode.codec import encode_journal
from marl_verl.errors import MarlError, check_known
from marl_verl.run.checkpoint.folders import complete, step_of
from marl_verl.team import TeamConfig, sides_of
from marl_verl_evaluation.elo import interval, ratings
from marl_verl_evaluation.request import Assignment, Pairing, Request
from marl_verl_evaluation.weights import assign, chosen_step

Steps = Mapping[int, Mapping[str, Assignment]]  # step -> agent -> its policy
Rewards = Mapping[str, Mapping[str, float]]  # agent -> component -> its mean over the agent's turns, of one episode


def chosen_steps(run: Path, wanted: Sequence[int] | None) -> tuple[int, ...]:
    """The steps that play each other, ascending; by default 0 and those of all complete checkpoints. MarlError: a step
    without a checkpoint, or only one step."""
    saved = [0, *map(step_of, complete(run / "checkpoints"))]
    steps = set(saved if wanted is None else [chosen_step(run, number) for number in wanted])
    if len(steps) < 2:
        only = ", ".join(map(str, steps))
        raise MarlError(f"--cross-play and --partner compare steps of run '{run}', but there is only {only}")
    return tuple(sorted(steps))


def pair(team: TeamConfig, steps: Sequence[int], partner: str | None = None) -> Request:
    """Pair every step on the first side with every step on the second one. A side that plays with a frozen policy is
    the same player at every step, and plays once. An agent with `opponent` plays with the policy itself. With `partner`
    pair the team of the last step with this agent of each step.

    The policies of a request have their step in the name; its pairings are those of the first row's player (by step)
    with each column's, then of the second row's, and so on. MarlError: the team does not have two sides, a side has
    several policies, a trained agent has no side, or the partner is unknown, alone, or not trained.
    """
    past = {name: policy.past.of for name, policy in team.policies.items() if policy.past is not None}
    agents = {name: replace(agent, policy=past.get(agent.policy, agent.policy)) for name, agent in team.agents.items()}
    team = replace(team, agents=agents)
    by_step = {step: assign(team, step) for step in steps}
    for step, assignments in by_step.items():
        for agent, used in assignments.items():
            if team.policies[used.source].trained:
                assignments[agent] = replace(used, policy=f"{used.policy}-step-{step}")
    if partner is not None:
        return Request(max(steps), _pairings_of_partner(partner, by_step))
    sides = tuple(sides_of(agents))
    return Request(max(steps), _pairings_of_sides(team, sides, by_step), sides=sides)


def _pairings_of_sides(team: TeamConfig, sides: Sequence[str], by_step: Steps) -> tuple[Pairing, ...]:
    if len(sides) != 2:
        known = ", ".join(sides) or "none"
        raise MarlError(f"--cross-play needs a team of two sides, but the team has {known}. Set marl.agents.NAME.side.")
    for agent in team.agents.values():
        if agent.side is None and team.policies[agent.policy].trained:
            raise MarlError(f"--cross-play: set a side of the trained agent '{agent.name}', marl.agents.NAME.side")
    rows, columns = (_players(team, side, by_step) for side in sides)
    neutral = next(iter(by_step.values()))  # for agents without a side, whose policies are not trained
    pairs = product(rows.items(), columns.items())
    return tuple(Pairing({**neutral, **first, **second}, row, column) for (row, first), (column, second) in pairs)


def _players(team: TeamConfig, side: str, by_step: Steps) -> dict[str, dict[str, Assignment]]:
    """Player of a side, such as "player@20" -> agent of the side -> its policy."""
    agents = [agent for agent in team.agents.values() if agent.side == side]
    name, *others = dict.fromkeys(agent.policy for agent in agents)
    if others:
        names = " and ".join(f"'{policy}'" for policy in (name, *others))
        raise MarlError(f"--cross-play compares policies, but side '{side}' is played by several: {names}")
    trained = team.policies[name].trained
    return {
        f"{name}@{step}" if trained else name: {agent.name: assignments[agent.name] for agent in agents}
        for step, assignments in by_step.items()
    }


def _pairings_of_partner(partner: str, by_step: Steps) -> tuple[Pairing, ...]:
    last = by_step[max(by_step)]
    check_known("agent", partner, last)
    policies = {step: assignments[partner] for step, assignments in by_step.items()}
    if len(set(policies.values())) == 1 or len(last) == 1:
        why = "its policy is not trained" if len(last) > 1 else "the team has no other agent"
        raise MarlError(f"--partner {partner} has no effect on others: {why}")
    label = f"team@{max(by_step)}"
    return tuple(Pairing({**last, partner: used}, label, f"{partner}@{step}") for step, used in policies.items())


def edited_rows(run: Path, name: str, act: str, text: str, sampled: bool) -> tuple[int, tuple[dict[str, Any], ...]]:
    """(step, a `TaskRow` of each arm) of an episode. MarlError: no act "AGENT:SLOT", or its replay differs."""
    file = file_of_episode(run, name)
    episode = file.episode(name)
    if changed := replay_differences(episode, replay(file.header, episode)):
        raise MarlError(f"episode '{name}' is not what is stored: {changed[0]}")
    acts = {":".join(record.act.key): record for record in episode.journal.acts()}
    check_known(f"act of episode '{name}'", act, acts)
    records, edited = episode.journal.records, acts[act]
    at, joint = records.index(edited), edited.act.joint
    later = [record for record in records[at + 1 :] if isinstance(record, ActRecord)]
    kept = [record for record in later if joint is not None and record.act.joint == joint]
    task, rows = json.dumps(asdict(episode.task)), []
    for arm, action in (("recorded", edited.action), ("edited", Action(text))):
        begun = Journal((*records[:at], ActRecord(edited.act, action), *kept), episode.journal.seed)
        rows.append({"task": task, "uid": arm, "keep": True, "sampled": sampled, "journal": encode_journal(begun)})
    return file.header.step, tuple(rows)


def result(request: Request, reports: Sequence[Sequence[Report]]) -> dict[str, Any]:
    """The numbers of a cross-play from the reports of each pairing: outcomes and ratings; or differences of rewards."""
    if request.rows:
        return differences(request.pairings, [_by_session(*of_arm) for of_arm in reports])
    if not request.sides:
        return differences(request.pairings, [[report.rewards for report in played] for played in reports])
    pairings = [
        pairing_result(pairing, request.sides, [report.outcomes for report in played])
        for pairing, played in zip(request.pairings, reports, strict=True)
    ]
    games = {(of["row"], of["column"]): (of["wins"] + of["draws"] / 2, of["games"]) for of in pairings}
    return {"pairings": pairings, **ratings(games)}


def _by_session(report: Report) -> list[list[Rewards]]:
    """The rewards of an edit's continuation in each session, with score and success of the team; none if it failed."""
    failed = {failure.session for failure in report.failures}
    played = zip(report.scores, report.successes, report.rewards, strict=True)
    values = ({"team": {"score": score, "success": float(done)}} | agents for score, done, agents in played)
    return [[] if session in failed else [next(values)] for session in range(report.attempts)]


def pairing_result(
    pairing: Pairing, sides: Sequence[str], tasks: Sequence[Sequence[Mapping[str, float]]]
) -> dict[str, Any]:
    """The numbers of one pairing from the outcomes (side -> outcome) of each task's episodes but the failed ones."""
    row, column = sides
    games = [outcomes for task in tasks for outcomes in task]
    means = {side: [float(np.mean([outcomes[side] for outcomes in task])) for task in tasks if task] for side in sides}
    wins = sum(outcomes[row] > outcomes[column] for outcomes in games)
    losses = sum(outcomes[row] < outcomes[column] for outcomes in games)
    return {
        "row": pairing.row,
        "column": pairing.column,
        "games": len(games),
        "wins": wins,
        "draws": len(games) - wins - losses,
        "losses": losses,
        "outcome": {side: float(np.mean(values)) if values else None for side, values in means.items()},
        "outcome_interval": {side: interval(values) for side, values in means.items()},
    }


def differences(pairings: Sequence[Pairing], rewards: Sequence[Sequence[Sequence[Rewards]]]) -> dict[str, Any]:
    """The numbers of each pairing: mean rewards, and their differences to the last pairing, beside the last partner or
    with the edited act: mean over tasks (of an edit: sessions) of (reward in the last pairing - reward in this one).
    `rewards`: of each pairing, task and episode; failed episodes are missing, and so is a task without others."""
    partner = pairings[-1].column.rpartition("@")[0]
    values = [_by_task(tasks, partner) for tasks in rewards]
    results = []
    for pairing, before in zip(pairings, values, strict=True):
        numbers: dict[str, Any] = {"row": pairing.row, "column": pairing.column, "rewards": {}, "difference": {}}
        for name, after in sorted(values[-1].items()):
            tasks = sorted(after.keys() & before.get(name, {}).keys())
            gains = [after[task] - before[name][task] for task in tasks]
            if gains:
                numbers["rewards"][name] = float(np.mean([before[name][task] for task in tasks]))
                numbers["difference"][name] = {"mean": float(np.mean(gains)), "interval": interval(gains)}
        results.append(numbers)
    return {"pairings": results}


def _by_task(tasks: Sequence[Sequence[Rewards]], partner: str) -> dict[str, dict[int, float]]:
    """ "agent, component" of the others -> task -> mean of its episodes."""
    values: dict[str, dict[int, list[float]]] = {}
    for task, episodes in enumerate(tasks):
        for agent, components in (item for episode in episodes for item in episode.items()):
            for component, value in components.items() if agent != partner else ():
                values.setdefault(f"{agent}, {component}", {}).setdefault(task, []).append(value)
    return {name: {task: float(np.mean(rewards)) for task, rewards in values[name].items()} for name in values}
