"""For each algorithm, rows that it takes, and what it computes of rows; and a config with overrides, resolved."""

from typing import Any

import numpy as np
from hypothesis import strategies as st
from marl_verl_testing.rows import Rows, algorithm, episodes, joint_trees, keep, row, trees
from omegaconf import DictConfig

from marl_verl.algo.advantage import AdvantageResult, RowTable
from marl_verl.algo.algorithms import Algorithm
from marl_verl.config.compose import with_overrides
from marl_verl.config.parts import finder
from marl_verl.config.resolve import resolve
from marl_verl.config.stored import team_of
from marl_verl.options import Part
from marl_verl.team import TeamConfig, read_team

__all__ = ["FIT", "SHIPPED", "Rows", "algorithm", "episodes", "find", "joint_trees", "keep", "row", "trees"]


def resolved(config: DictConfig, *overrides: str) -> Any:
    config = with_overrides(config, overrides)
    return resolve(config, team_of(config))


def team_config(agents: dict[str, Any], **policies: dict[str, Any]) -> TeamConfig:
    parts = {part: {"name": part} for part in ("task", "workflow", "algorithm")}
    return read_team({"agents": agents, "policies": policies, **parts})


def compute(method: Algorithm, rows: Rows) -> AdvantageResult:
    return method.compute(RowTable.from_rows(rows))


def advantage(method: Algorithm, rows: Rows) -> np.ndarray:
    return compute(method, rows).advantage


def find(base: type[Part], name: str) -> Any:
    """The class of a part that comes with marl-verl, or with MARS2."""
    return finder(algorithm("mars2"))(base, name, "test")


def only_workers_have_credit(rows: Rows) -> Rows:
    """Every session has a planner, whose rows have no credit."""
    for key, first in {(r["uid"], r["session"]): r for r in reversed(rows)}.items():
        if not any(r["agent"] == "planner" for r in rows if (r["uid"], r["session"]) == key):
            rows = [*rows, {**first, "agent": "planner", "index": 99, "rewards": dict(first["rewards"])}]
    for r in rows:
        if r["agent"] == "planner":
            del r["rewards"]["mc"]
    return rows


TEAM = episodes().map(lambda rows: keep(rows, team="team", role="role"))
TEAM_METHODS = ("grpo", "grpo-trajectory-mean", "reinforce++", "at-grpo", "at-grpo-sessions", "dr-mas", "ippo", "mappo")
SHARP = episodes().map(lambda rows: only_workers_have_credit(keep(rows, broadcast="outcome", mc="mc", tool="tool")))
FIT: dict[str, st.SearchStrategy[Rows]] = {
    **dict.fromkeys(TEAM_METHODS, TEAM),
    **dict.fromkeys(("magrpo", "magrpo-sessions"), episodes().map(lambda rows: keep(rows, team="joint"))),
    **dict.fromkeys(("mars2", "mars2-plus"), trees()),
    "sharp": SHARP,
    "gigpo": episodes().map(lambda rows: keep(rows, episode="outcome", step="joint")),
}
"""Algorithm -> a strategy for rows that it takes."""

SHIPPED = sorted(FIT)
