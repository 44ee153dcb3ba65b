"""What a sampler returns: episodes and failures of one task, their stored lines, and computed columns of turns."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from marl_verl.episode import Episode, Turn
from marl_verl.episode.codec import as_line, encode_episode, without_addresses
from marl_verl.episode.errors import Reason
from marl_verl.episode.turn import JOIN
from marl_verl.errors import MarlError, shown, user_error

Candidate = int | str
"""Distinguishes several actions for one act; part of the request's seed. A name is independent of arrival order."""
GREEDY = "greedy"
"""A candidate sampled at temperature 0; and the column of rows with the reward of a task's greedy episode."""


@dataclass(frozen=True)
class Failure:
    """An attempt without an episode."""

    session: int
    reason: Reason
    detail: str  # the error message, which names workflow, task and effect
    trace: str = ""  # for the log


@dataclass
class Sample:
    """The result of sampling one task.

    Attributes:
        episodes: in session order; in a tree, the paths to its leaves, which share turns.
        extra_tokens: purpose -> sampled tokens that are not in rows: rollouts to the end, counterfactuals.
        dropped: successful attempts that were discarded because related attempts failed.
        greedy: an episode at temperature 0 that is stored and not trained on: a baseline.
    """

    episodes: list[Episode] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    extra_tokens: dict[str, int] = field(default_factory=dict)
    dropped: int = 0
    greedy: Episode | None = None

    @property
    def turns(self) -> list[Turn]:
        """Every sampled turn once, by session and index: the rows."""
        turns = {id(turn): turn for turn in self._turns() if not turn.transition}
        return sorted(turns.values(), key=lambda turn: (turn.session, turn.index))

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
        if moved := {id(turn): turn.length for turn in self._turns() if turn.transition}:
            self.add_tokens("untrained", sum(moved.values()))

    def _turns(self) -> Iterator[Turn]:
        """The turns of all episodes; those that episodes share are repeated."""
        return (turn for episode in self.episodes for turn in (*episode.turns, *episode.off_path_turns))


def sample_lines(sample: Sample, uid: str, task: str, tokens: bool, more: Mapping[str, Any] = {}) -> list[str]:
    """The lines of one task, with token ids and log-probabilities if `tokens`: its episodes in the sampler's order
    (a greedy one last), then its failures by session. `more`: values stored with each episode."""
    failures = sorted(sample.failures, key=lambda failure: (failure.session, failure.reason, failure.detail))
    episodes = sample.episodes if sample.greedy is None else [*sample.episodes, sample.greedy]
    lines = [as_line({**encode_episode(episode, tokens), **more}) for episode in episodes]
    for failure in failures:
        detail = without_addresses(failure.detail)
        stored = {"failure": failure.reason, "session": failure.session, "detail": detail, "uid": uid, "task": task}
        lines.append(as_line(stored))
    return lines


ColumnFunction = Callable[[Turn, Episode], Mapping[str, float | Sequence[float]]]
"""The numbers of a turn, {column: number}, of a list one per response token; a column may be left out for some turns.
Rows have them as `RowTable.column` and `RowTable.token_column`."""


def add_columns(functions: Mapping[str, ColumnFunction], sample: Sample) -> None:
    """Set `columns` of every turn of a sample; a turn that several episodes share gets them from the first of these.
    MarlError, with the name of the function, if it raised, or returned no mapping from names to finite numbers."""
    turns: dict[int, tuple[Turn, Episode]] = {}
    for episode in sample.episodes if functions else ():
        for turn in (*episode.turns, *episode.off_path_turns):
            turns.setdefault(id(turn), (turn, episode))
    for turn, episode in turns.values():
        for name, function in functions.items() if not turn.transition else ():
            label = f"column function {name}, for turn {turn.index} of agent '{turn.agent}',"
            with user_error(f"{label} failed", Exception):
                turn.columns |= {column: _numbers(value, turn) for column, value in function(turn, episode).items()}


def _numbers(value: Any, turn: Turn) -> float | list[float]:
    """A number, or one per response token, of Python, NumPy or torch."""
    numbers = np.asarray(value, dtype=np.float64)
    if numbers.shape not in ((), (turn.length,)) or not np.isfinite(numbers).all():
        raise MarlError(f"{shown(value)} is no finite number, nor a list with one per response token")
    plain: float | list[float] = numbers.tolist()
    return plain
