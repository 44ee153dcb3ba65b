"""What a sampler returns: episodes and failures of one task."""

from __future__ import annotations

from dataclasses import dataclass, field

from marl_verl.episode import Episode, Reason, Turn
from marl_verl.episode.turn import JOIN
from marl_verl.errors import MarlError

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
