"""Options of a class: types, ranges and nested options. Messages of wrong ones are in `config_messages.txt`."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Gt, Interval, Lt

from marl_verl.options import NonNegative, Options, Positive, build


@dataclass(frozen=True)
class Limit:
    seconds: Annotated[float, Gt(0)] = 1.0


class Search(Options):
    width: Positive = 4
    depth: NonNegative | None = None
    decay: Annotated[float, Interval(gt=0, le=1)] = 0.5
    share: Annotated[float, Lt(1)] = 0.0
    order: Literal["depth", "breadth"] | None = None
    seeds: Literal[-1] | Positive = -1
    limit: Limit | None = None


def test_values_within_their_ranges_are_taken_as_they_are() -> None:
    given: dict[str, Any] = {"width": 1, "depth": 0, "decay": 1, "order": "depth", "seeds": 3, "limit": {"seconds": 2}}
    assert build(Search, given, "o") == Search(**{**given, "limit": Limit(2)})
    assert build(Search, {"limit": None, "depth": None}, "o") == build(Search, None, "o") == Search()
