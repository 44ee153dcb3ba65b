"""Write the episodes of a step as JSON lines, so that each episode can be replayed from the file alone.

Line 1 is `header`; each other line is an episode, encoded by `marl_verl.episode.codec`, or a failed attempt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from marl_verl import plugins
from marl_verl.episode.codec import SCHEMA, encode_episode, without_addresses
from marl_verl.journals.read import KIND, StoredFailure
from marl_verl.team import AgentConfig, Named, TeamConfig
from marl_verl.version import __version__

if TYPE_CHECKING:
    from marl_verl.algo.algorithms import Algorithm
    from marl_verl.algo.sampling import Failure, Sample
    from marl_verl.tasks.base import Split


def header(
    team: TeamConfig, algorithm: Algorithm, step: int, split: Split, seed: int, sampler: Named
) -> dict[str, Any]:
    """The first line of a file: the data besides the episode that a replay needs, and the step of the run. `sampler`
    has all options, defaults included."""
    return {
        **{"schema": SCHEMA, "kind": KIND, "marl_verl": __version__, "step": step, "split": split, "seed": seed},
        "task": _part("tasks", team.task),
        "workflow": _part("workflows", team.workflow),
        "agents": {agent.name: _agent(agent) for agent in team.agents.values()},
        "algorithm": {"name": team.algorithm.name, "options": algorithm.options()},
        "sampler": {"name": sampler.name, "options": sampler.options},
    }


def _agent(agent: AgentConfig) -> dict[str, Any]:
    shown = {key: getattr(agent, key) for key in ("policy", "reward", "instructions")}
    return shown | ({"past_of": agent.opponent.of} if agent.opponent is not None else {})


def _part(kind: str, named: Named) -> dict[str, Any]:
    entry = plugins.load().entry(kind, named.name)
    return {"name": named.name, "options": named.options, "distribution": entry.distribution, "version": entry.version}


def sample_lines(sample: Sample, uid: str, task: str, tokens: bool, more: Mapping[str, Any] = {}) -> list[str]:
    """The lines of one task, with token ids and log-probabilities if `tokens`: its episodes in the sampler's order
    (a greedy one last), then its failures by session. `more`: values stored with each episode."""
    failures = sorted(sample.failures, key=lambda failure: (failure.session, failure.reason, failure.detail))
    episodes = sample.episodes if sample.greedy is None else [*sample.episodes, sample.greedy]
    stored = [{**encode_episode(episode, tokens), **more} for episode in episodes]
    return [as_line(data) for data in (*stored, *(failure_data(failure, uid, task) for failure in failures))]


def as_line(data: dict[str, Any]) -> str:
    """One line of JSON, without a line break; text that UTF-8 cannot encode (an unpaired surrogate) is escaped."""
    line = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    try:
        line.encode()
    except UnicodeEncodeError:
        return json.dumps(data, separators=(",", ":"))
    return line


def failure_data(failure: Failure, uid: str, task: str) -> dict[str, Any]:
    """A failed attempt as a JSON value."""
    detail = without_addresses(failure.detail)
    stored: dict[str, Any] = msgspec.to_builtins(StoredFailure(failure.reason, detail, uid, failure.session, task))
    return stored
