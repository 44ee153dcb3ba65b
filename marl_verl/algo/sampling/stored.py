"""The lines of a task in a file of stored episodes: its episodes, and its failed attempts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from marl_verl.algo.sampling.base import Failure, Sample
from marl_verl.episode.codec import as_line, encode_episode, without_addresses


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
