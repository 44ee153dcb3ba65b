"""What a sampler returns: episodes and failures of one task, their stored lines, and computed columns of turns."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from numbers import Real
from typing import Any

from marl_verl.algo.advantage.rows import COUNTS, LABELS
from marl_verl.episode import Episode, Turn
from marl_verl.episode.codec import as_line, encode_episode, without_addresses
from marl_verl.episode.errors import Reason
from marl_verl.episode.turn import JOIN
from marl_verl.errors import MarlError, format_error, shown

Candidate = int | str
"""Distinguishes several actions for one act; part of the request's seed. A name is independent of arrival order."""
GREEDY = "greedy"
"""A candidate sampled at temperature 0; and the column of rows with the reward of a task's greedy episode."""


@dataclass(frozen=True)
class Failure:
    """An attempt without an episode.

    Attributes:
        reason: its class, for counting.
        detail: the error message, which names workflow, task and effect.
        trace: the traceback, for the log.
    """

    session: int
    reason: Reason
    detail: str
    trace: str = ""


@dataclass
class Sample:
    """The result of sampling one task.

    Attributes:
        episodes: in session order; in a tree, the paths to its leaves, which share turns.
        failures: attempts without an episode.
        dropped: successful attempts that were discarded because related attempts failed.
        greedy: an episode at temperature 0 that is stored and not trained on: a baseline.
        extra_tokens: purpose -> sampled tokens that are not in rows: rollouts to the end, counterfactuals.
    """

    episodes: list[Episode] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    extra_tokens: dict[str, int] = field(default_factory=dict)
    dropped: int = 0
    greedy: Episode | None = None

    @property
    def turns(self) -> list[Turn]:
        """Every sampled turn once, by session and index: the rows. MarlError if two turns have the same key."""
        turns: dict[tuple[int, int], Turn] = {}
        for turn in (turn for episode in self.episodes for turn in (*episode.turns, *episode.off_path_turns)):
            if not turn.transition and turns.setdefault((turn.session, turn.index), turn) is not turn:
                raise MarlError(f"the sampler returned two turns (agent '{turn.agent}') with the key '{turn.row}'")
        return [turn for _, turn in sorted(turns.items())]

    @property
    def attempts(self) -> int:
        """The number of attempts, failed ones included: episodes, or nodes of a tree."""
        turns = self.turns
        nodes = {name for turn in turns if turn.node is not None for name in turn.node.split(JOIN)}
        others = len(self.failures) + self.dropped + (self.greedy is not None)
        return others + max(len(nodes), len({turn.session for turn in turns}))

    def add_tokens(self, purpose: str, tokens: int) -> None:
        """Count sampled tokens that are not in rows."""
        self.extra_tokens[purpose] = self.extra_tokens.get(purpose, 0) + tokens

    def count_transitions(self) -> None:
        """Count the tokens of transitions, which are in no row, as "untrained"."""
        turns = (turn for episode in self.episodes for turn in (*episode.turns, *episode.off_path_turns))
        moved = {id(turn): turn for turn in turns if turn.transition}
        if moved:
            self.add_tokens("untrained", sum(turn.length for turn in moved.values()))


def sample_lines(sample: Sample, uid: str, task: str, tokens: bool, more: Mapping[str, Any] = {}) -> list[str]:
    """The lines of one task, with token ids and log-probabilities if `tokens`: its episodes in the sampler's order
    (a greedy one last), then its failures by session. `more`: values stored with each episode."""
    failures = sorted(sample.failures, key=lambda failure: (failure.session, failure.reason, failure.detail))
    episodes = sample.episodes if sample.greedy is None else [*sample.episodes, sample.greedy]
    lines = [as_line({**encode_episode(episode, tokens), **more}) for episode in episodes]
    return [*lines, *(failure_line(failure, uid, task) for failure in failures)]


def failure_line(failure: Failure, uid: str, task: str) -> str:
    """The line of a failed attempt at a task."""
    stored = {**asdict(failure), "detail": without_addresses(failure.detail), "uid": uid, "task": task}
    del stored["trace"]
    return as_line({"failure": stored.pop("reason"), **stored})


ColumnFunction = Callable[[Turn, Episode], Mapping[str, float | Sequence[float]]]
"""The numbers of a turn, {column: number}, of a list one per response token; a column may be left out for some turns.
Rows have them as `RowTable.column` and `RowTable.token_column`."""


def add_columns(functions: Mapping[str, ColumnFunction], sample: Sample) -> None:
    """Set `columns` of every turn of a sample; a turn that several episodes share gets them from the first of these.

    Raises:
        MarlError: a function raised, or returned something else than a mapping from names to finite numbers. The
            message has the function's key in `functions` and the turn.
    """
    if not functions:
        return
    done: set[int] = set()
    for episode in sample.episodes:
        for turn in (*episode.turns, *episode.off_path_turns):
            if id(turn) not in done and not turn.transition:
                done.add(id(turn))
                for name, function in functions.items():
                    _add(name, function, turn, episode)


def _add(name: str, function: ColumnFunction, turn: Turn, episode: Episode) -> None:
    label = f"column function {name}, for turn {turn.index} of agent '{turn.agent}',"
    try:
        returned: Any = function(turn, episode)
    except Exception as error:
        raise MarlError(f"{label} failed: {format_error(error)}") from error
    if not isinstance(returned, Mapping):
        raise MarlError(f"{label} must return a mapping such as {{'nll': 0.5}}, got {shown(returned)}")
    for column, value in returned.items():
        if column in (*LABELS, *COUNTS, *turn.columns):
            raise MarlError(f"{label} returns column {shown(column)}, a name that rows have already. Rename it.")
        turn.columns[column] = _numbers(value, turn, f"{label} returns {shown(value)} as column '{column}'")


def _numbers(value: Any, turn: Turn, label: str) -> float | list[float]:
    values = value.tolist() if hasattr(value, "tolist") else value  # of NumPy and torch
    several = isinstance(values, list | tuple)
    numbers = [number for number in (values if several else [values]) if isinstance(number, Real)]
    if len(numbers) != (turn.length if several else 1) or not all(map(math.isfinite, numbers)):
        raise MarlError(f"{label}. A finite number, or a list with one per response token, is required.")
    return [float(number) for number in numbers] if several else float(numbers[0])
