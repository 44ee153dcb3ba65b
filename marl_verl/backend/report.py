"""What came of played tasks, for the training loop."""

from __future__ import annotations

from dataclasses import dataclass, field

from marl_verl.algo.sampling import Failure


@dataclass
class Report:
    """The outcome of one task for the driver, in addition to its rows."""

    uid: str
    task: str
    attempts: int = 0  # number of attempts, failures included
    extra_tokens: dict[str, int] = field(default_factory=dict)  # purpose -> sampled tokens that are in no row
    response_seconds: list[float] = field(default_factory=list)  # of each act of its episodes
    answer_seconds: list[float] = field(default_factory=list)  # per episode: of all its acts, a joint move as one
    successes: list[bool] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)  # of its episodes, without the task set's scale and shift
    outcomes: list[dict[str, float]] = field(default_factory=list)  # per episode: side -> its score, if there are sides
    rewards: list[dict[str, dict[str, float]]] = field(default_factory=list)  # per episode: agent -> component -> mean
    measures: list[dict[str, float]] = field(default_factory=list)  # per episode: `TaskSet.measures`
    read: list[tuple[str, float]] = field(default_factory=list)  # per turn: agent, tokens read from other agents
    set: str | None = None  # the public set of the task, if its data names one
    failures: list[Failure] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)  # episodes and failures to store, as JSON
    metrics: dict[str, float] = field(default_factory=dict)  # of the algorithm's own metrics
    error: str | None = None  # message if the sampler itself failed
