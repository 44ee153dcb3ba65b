"""Hypothesis strategies for batches of rows, for property tests of advantages and credits.

Rewards are multiples of 1/4, so that sums are exact and ties occur.
"""

import itertools
from typing import Any

from hypothesis import strategies as st

from marl_verl.algo.algorithms import Algorithm
from marl_verl.config.parts import algorithm_named, with_flat

__all__ = ["AGENTS", "VALUES", "Rows", "algorithm", "episodes", "joint_trees", "keep", "row", "trees"]

Rows = list[dict[str, Any]]
AGENTS = ("planner", "solver", "verifier")
VALUES = st.integers(-8, 8).map(lambda number: number / 4)


def algorithm(base: str | Algorithm, **options: Any) -> Algorithm:
    """An algorithm, or the registered one of that name, with options as in config; those of its parts also by their
    names alone: `algorithm("grpo", returns="discounted", gamma=0.5)`."""
    return with_flat(algorithm_named(base, {}, "options") if isinstance(base, str) else base, options, "options")


def row(uid: str, session: int, index: int, turn: int, agent: str, **rewards: float) -> dict[str, Any]:
    """One row of three tokens, without a tree."""
    who = {"uid": uid, "session": session, "index": index, "turn": turn, "agent": agent}
    return {**who, "node": None, "parent": None, "rewards": rewards, "length": 3}


@st.composite
def episodes(draw: st.DrawFn, tasks: int = 3, agents: int = 3, turns: int = 3) -> Rows:
    """Sessions of uneven length in which agents skip turns, with all reward components."""
    rows = []
    for task in range(draw(st.integers(1, tasks))):
        for session in range(draw(st.integers(1, 4))):
            outcome = draw(VALUES)
            index = itertools.count()
            for turn in range(draw(st.integers(1, turns))):
                joint = draw(VALUES)
                names = st.lists(st.sampled_from(AGENTS[:agents]), min_size=1, max_size=agents, unique=True)
                for agent in draw(names):
                    new = row(f"q{task}", session, next(index), turn, agent, team=draw(VALUES), role=draw(VALUES))
                    new |= {"obs": draw(st.sampled_from("xyz")), "invalid": draw(st.booleans()), "joint": None}
                    new |= {"length": draw(st.integers(1, 30)), "value": draw(VALUES)}
                    new["rewards"] |= {"outcome": outcome, "joint": joint, "mc": draw(VALUES), "tool": draw(VALUES)}
                    rows.append(new)
    return rows


@st.composite
def trees(draw: st.DrawFn, tasks: int = 3, agents: int = 3, most: int = 8) -> Rows:
    """A tree per task, as from a tree search: each node is one attempt of one agent below an earlier one."""
    rows = []
    for task in range(draw(st.integers(1, tasks))):
        depth: dict[str, int] = {}
        for number in range(draw(st.integers(1, most))):
            parent = draw(st.sampled_from([None, *depth]))
            node = f"n{number}++"  # any text is a name
            depth[node] = 0 if parent is None else depth[parent] + 1
            new = row(f"q{task}", 0, number, depth[node], draw(st.sampled_from(AGENTS[:agents])), team=draw(VALUES))
            rows.append({**new, "node": node, "parent": parent, "length": draw(st.integers(1, 30))})
    return rows


@st.composite
def joint_trees(draw: st.DrawFn, agents: int = 2, depth: int = 3, all_act: bool = False) -> Rows:
    """A joint tree per task: K joint actions at a node, each with a row per acting agent and one shared reward."""
    rows: Rows = []
    for task in range(draw(st.integers(1, 2))):
        names, index = itertools.count(), itertools.count()
        width = draw(st.integers(1, 3))
        level: list[str | None] = [None]
        for turn in range(draw(st.integers(1, depth))):
            below: list[str | None] = []
            for parent in level:
                if parent is not None and draw(st.booleans()):
                    continue  # this branch stopped
                for _ in range(width):
                    node, reward = f"n{next(names)}", draw(VALUES)
                    names_here = st.lists(st.sampled_from(AGENTS[:agents]), min_size=1, max_size=agents, unique=True)
                    for agent in AGENTS[:agents] if all_act else draw(names_here):
                        new = row(f"q{task}", 0, next(index), turn, agent, team=reward)
                        rows.append({**new, "node": node, "parent": parent})
                    below.append(node)
            level = below
    return rows


def keep(rows: Rows, **names: str) -> Rows:
    """The rows with only these components, renamed: new name -> old name."""
    return [{**r, "rewards": {new: r["rewards"][old] for new, old in names.items()}} for r in rows]
