"""A square grid with walls: cells named by letter and number, shortest walks, and legal walks."""

import functools
from collections.abc import Sequence

# Right, left, down, up as (row, column) offsets. `walk` prefers earlier entries among equally short walks.
STEPS = ((0, 1), (0, -1), (1, 0), (-1, 0))


@functools.cache
def cells(size: int) -> tuple[str, ...]:
    """The names of the cells of a `size` x `size` grid, row by row: "a1", "a2", ..., "b1", ... (one word each)."""
    return tuple(f"{chr(ord('a') + row)}{column + 1}" for row in range(size) for column in range(size))


@functools.cache
def neighbours(size: int) -> dict[str, tuple[str, ...]]:
    """Cell -> the cells one step away, in the order of `STEPS`."""
    named = {divmod(number, size): cell for number, cell in enumerate(cells(size))}
    return {
        cell: tuple(named[row + down, column + right] for down, right in STEPS if (row + down, column + right) in named)
        for (row, column), cell in named.items()
    }


@functools.lru_cache(maxsize=8192)
def distances(size: int, walls: frozenset[str], goal: str) -> dict[str, int]:
    """Cell -> number of steps of the shortest walk to `goal` around the walls; absent where there is none."""
    steps, queue = {goal: 0}, [goal]
    for cell in queue:  # which grows during the loop
        for near in neighbours(size)[cell]:
            if near not in walls and near not in steps:
                steps[near] = steps[cell] + 1
                queue.append(near)
    return steps


def walk(size: int, walls: frozenset[str], start: str, goal: str) -> list[str]:
    """A shortest walk from `start` to a reachable `goal`: the cells entered, the last one is the goal."""
    left = distances(size, walls, goal)
    path, cell = list[str](), start
    while cell != goal:
        cell = next(near for near in neighbours(size)[cell] if left.get(near, left[cell]) < left[cell])
        path.append(cell)
    return path


def straight(size: int, start: str, goal: str) -> list[str]:
    """The walk along the axis on which `goal` is farther away, up to its coordinate, ignoring walls."""
    (row, column), (goal_row, goal_column) = (divmod(cells(size).index(cell), size) for cell in (start, goal))
    if abs(goal_row - row) > abs(goal_column - column):
        step = 1 if goal_row > row else -1
        return [cells(size)[at * size + column] for at in range(row + step, goal_row + step, step)]
    step = 1 if goal_column > column else -1
    return [cells(size)[row * size + at] for at in range(column + step, goal_column + step, step)]


def legal(size: int, walls: frozenset[str], start: str, path: Sequence[str]) -> list[str]:
    """The legal prefix of `path` from `start`: up to the first word that is not a free neighbouring cell."""
    for walked, (cell, near) in enumerate(zip([start, *path], path, strict=False)):
        if near in walls or near not in neighbours(size)[cell]:
            return list(path[:walked])
    return list(path)
