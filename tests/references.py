"""The presets of the core as straight-line functions: the equation as code, without parts.

They take plain rows (`RowTable.from_rows`) and return advantages. Plugins have theirs beside their presets.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from marl_verl.algo.algorithms import PlainRows, in_groups, rewards_of


def grpo(rows: PlainRows) -> list[float]:
    return in_groups(rewards_of(rows), rows, ["uid"], raw=True)


def grpo_trajectory_mean(rows: PlainRows) -> list[float]:
    sessions: dict[Any, list[float]] = {}
    for row, reward in zip(rows, rewards_of(rows), strict=True):
        sessions.setdefault((row["uid"], row["session"]), []).append(reward)
    means = [float(np.mean(rewards)) for rewards in sessions.values()]
    advantages = in_groups(means, [{"uid": uid} for uid, _ in sessions], ["uid"], raw=True)
    of = dict(zip(sessions, advantages, strict=True))
    return [of[row["uid"], row["session"]] for row in rows]


def reinforce_pp(rows: PlainRows) -> list[float]:
    return in_groups(rewards_of(rows), rows, [], eps=1e-8)


def gae(rows: PlainRows, gamma: float = 1.0, lam: float = 0.95) -> list[float]:
    """Backwards over each agent's turns in a session: delta = r + gamma V' - V, A = delta + gamma lam A'."""
    rewards, advantages = rewards_of(rows), np.zeros(len(rows))
    following: dict[Any, tuple[float, float]] = {}  # V and A of the agent's next turn
    for i in sorted(range(len(rows)), key=lambda i: -rows[i]["index"]):
        key = (rows[i]["uid"], rows[i]["session"], rows[i]["agent"])
        value, advantage = following.get(key, (0.0, 0.0))
        delta = rewards[i] + gamma * value - rows[i]["value"]
        advantages[i] = delta + gamma * lam * advantage
        following[key] = rows[i]["value"], advantages[i]
    return list(map(float, advantages))


def ippo(rows: PlainRows) -> list[float]:
    return in_groups(gae(rows), rows, ["agent"], eps=1e-8, raw=True)


def remax(rows: PlainRows) -> list[float]:
    return [reward - row["columns"]["greedy"] for row, reward in zip(rows, rewards_of(rows), strict=True)]


def gdpo(rows: PlainRows, keys: Sequence[str] = ("team",), weights: Sequence[float] = (1.0,)) -> list[float]:
    parts = [in_groups([row["rewards"][key] for row in rows], rows, ["uid"], raw=True) for key in keys]
    totals = np.array(weights) @ np.array(parts)
    advantages = []
    for row, total in zip(rows, totals, strict=True):
        mine = [i for i, other in enumerate(rows) if other.get("policy") == row.get("policy")]
        tokens = np.repeat(totals[mine], [rows[i]["length"] for i in mine])
        variance = tokens.var(ddof=1) if len(tokens) > 1 else 0.0
        advantages.append(float((total - tokens.mean()) / np.sqrt(variance + 1e-8)))
    return advantages


def gigpo(rows: PlainRows, gamma: float = 0.95, step_w: float = 1.0) -> list[float]:
    advantages = []
    for row in rows:
        episodes = {o["session"]: o["rewards"]["episode"] for o in rows if o["uid"] == row["uid"]}
        mine = row["rewards"]["episode"]
        upper = mine - float(np.mean(list(episodes.values()))) if len(episodes) > 1 else mine
        steps = [_step_return(o, rows, gamma) for o in rows if (o["uid"], o["obs"]) == (row["uid"], row["obs"])]
        advantages.append(upper + step_w * (_step_return(row, rows, gamma) - float(np.mean(steps))))
    return advantages


def _step_return(row: Mapping[str, Any], rows: PlainRows, gamma: float) -> float:
    session = [o for o in rows if (o["uid"], o["session"]) == (row["uid"], row["session"])]
    later = {o["turn"]: o["rewards"]["step"] for o in session if o["turn"] >= row["turn"]}
    return float(sum(gamma ** (turn - row["turn"]) * reward for turn, reward in later.items()))


def per_role(rows: PlainRows, roles: Mapping[str, Callable[..., list[float]]], others: Any) -> list[float]:
    """The rows of each of `roles` by themselves, and the rest by themselves; "worker#2" is a worker."""
    parts: dict[Any, list[int]] = {}
    for place, row in enumerate(rows):
        role = row["agent"].partition("#")[0]
        parts.setdefault(role if role in roles else None, []).append(place)
    advantages = [0.0] * len(rows)
    for role, places in parts.items():
        for place, value in zip(places, roles.get(role, others)([rows[place] for place in places]), strict=True):
            advantages[place] = value
    return advantages


REFERENCES: Mapping[str, Callable[..., list[float]]] = {
    **{"grpo": grpo, "grpo-trajectory-mean": grpo_trajectory_mean, "reinforce++": reinforce_pp},
    **{"ippo": ippo, "mappo": ippo},  # the values are of another critic
    **{"remax": remax, "gdpo": gdpo, "gigpo": gigpo},
}
