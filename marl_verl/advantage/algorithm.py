"""An algorithm is five names: how to sample, what to reward, whom to credit, what to compare, how to update."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol, get_type_hints

import numpy as np

from marl_verl.advantage.estimator import Estimator
from marl_verl.advantage.mix import check_finite
from marl_verl.advantage.result import Advantages
from marl_verl.advantage.rows import FloatArray, RowTable
from marl_verl.errors import MarlError, nearest
from marl_verl.options import check_type

NAMES = ("sampler", "credit", "loss")  # registered names; `rewards` and `advantage` are parts with options of their own
PARTS = ("rewards", "advantage")


class RewardMix(Protocol):
    """What makes one reward of a row's components. A frozen dataclass, whose fields are its options."""

    def compute(self, table: RowTable) -> FloatArray:
        """Reward per row, [n]."""
        ...


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """A method for training a team.

    Its options are the fields of its parts, flat: `Mix.weights`, `Advantage.group`, ... and the names `sampler`,
    `credit`, `loss`. Two parts with an option of the same name are an error here, not a surprise in config.

    Attributes:
        sampler: registered sampler, which decides what episodes there are.
        rewards: reward components -> reward.
        credit: registered credit scheme, "none" for the components as they are.
        advantage: reward -> advantage.
        loss: registered loss.
    """

    sampler: str
    rewards: RewardMix
    credit: str
    advantage: Estimator
    loss: str

    def __post_init__(self) -> None:
        seen: dict[str, str] = dict.fromkeys(NAMES, "the algorithm")
        for part in PARTS:
            for name in _fields(getattr(self, part)):
                if name in seen:
                    raise MarlError(f"option '{name}' is in {seen[name]} and in {part}: rename one")
                seen[name] = part

    def options(self) -> dict[str, Any]:
        """Every option with its value, flat: what a run logs at its start and stores."""
        flat = {name: getattr(self, name) for name in NAMES}
        for part in PARTS:
            flat |= {name: getattr(getattr(self, part), name) for name in _fields(getattr(self, part))}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in flat.items()}

    def describe(self) -> str:
        """Every option in one line for the log, group columns first: "group (uid, turn, agent), sampler ..."."""
        options = self.options()
        order = sorted(options, key=lambda name: name != "group")
        return ", ".join(f"{name} {_shown(options[name])}" for name in order)

    def with_options(self, options: Mapping[str, Any] | None, where: str = "algorithm") -> Algorithm:
        """This algorithm with some options changed, as config gives them.

        Args:
            options: option -> value; lists serve for tuples.
            where: how the user wrote it, e.g. "marl.algorithm.options"; it begins the error.

        Raises:
            MarlError: unknown option (the nearest is offered), wrong type, or a value that its part refuses.
        """
        given = dict(options or {})
        valid = self.options()
        for name in given:
            if name not in valid:
                raise MarlError(f"unknown key '{where}.{name}': {nearest(str(name), valid)}")
        changed: dict[str, Any] = {}
        for name in NAMES:
            if name in given:
                check_type(given[name], str, f"{where}.{name}")
                changed[name] = given[name]
        for part in PARTS:
            old = getattr(self, part)
            hints = get_type_hints(type(old))
            mine = {name: value for name, value in given.items() if name in _fields(old)}
            for name, value in mine.items():
                check_type(value, hints[name], f"{where}.{name}")
            try:
                changed[part] = dataclasses.replace(old, **mine) if mine else old
            except MarlError as error:
                raise MarlError(f"{where}: {error}") from error
        return dataclasses.replace(self, **changed)

    def compute(self, table: RowTable) -> Advantages:
        """The advantage of every row: mix the components, then compare.

        Padding rows get 0 and enter no statistic; permuting the rows permutes the result, to the bit.

        Raises:
            MarlError: no row besides padding; a NaN or infinite reward (component, row and task named); a component
                that the mix needs and rows lack; a group column that the table lacks; rewards too large for float64
                statistics.
        """
        rows = table.order()
        if not len(rows):
            raise MarlError("there are no rows besides padding: an advantage needs at least one")
        real = table.take(rows)
        check_finite(real)
        with np.errstate(over="ignore", invalid="ignore"):  # told below, with the row
            reward = self.rewards.compute(real)
            _finite(reward, real, "mixed reward")
            result = self.advantage.compute(real, reward)
        _finite(result.scale, real, "scale")  # an infinite one would make the advantage a silent 0
        _finite(result.advantage, real, "advantage")
        return result.scatter(rows, len(table))


def _shown(value: Any) -> str:
    return f"({', '.join(map(str, value))})" if isinstance(value, list) else str(value)


def _finite(values: FloatArray, table: RowTable, what: str) -> None:
    bad = ~np.isfinite(values)
    if bad.any():
        row = int(np.argmax(bad))
        raise MarlError(
            f"the {what} of row '{table.key(row)}' is {values[row]}: rewards are too large or too far apart"
        )


def _fields(part: Any) -> tuple[str, ...]:
    if not dataclasses.is_dataclass(part):
        raise MarlError(f"{type(part).__name__} must be a dataclass: its fields are its options")
    return tuple(field.name for field in dataclasses.fields(part))
