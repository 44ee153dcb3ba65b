"""Episodes as JSON lines: what a run stores of a step, so that each of them can be replayed from the file alone.

    line 1    {"schema": 1, "kind": "episodes", ...}    what the run was: team, workflow, task set, algorithm, sampler
    then      {"id": ..., "journal": {...}, ...}        one episode a line, in the order of the batch's tasks
    or        {"failure": ..., "detail": ..., ...}      one attempt that came to nothing

The same episodes give the same bytes: keys have a fixed order, and nothing that a clock says is stored.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any

from marl_verl import __version__, plugins
from marl_verl.team import Named, Team

if TYPE_CHECKING:
    from marl_verl.advantage import Algorithm
    from marl_verl.episode import Action, Episode, Turn
    from marl_verl.sampling import Failure, Sample
    from marl_verl.tasks.base import Split

SCHEMA = 1
KIND = "episodes"

CLOCK = ("seconds",)
TOKENS = ("prompt_ids", "response_ids", "log_probs")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def header(
    team: Team, algorithm: Algorithm, step: int, split: Split, seed: int, sampler: Named, sessions: int
) -> dict[str, Any]:
    """The first line of a file: all that a replay needs besides an episode, and what the run was.

    Args:
        split: "train" for a training step, "test" for a validation.
        seed: of the run.
        sampler: how the episodes were sampled; `sessions` attempts a task.
    """
    return {
        "schema": SCHEMA,
        "kind": KIND,
        "marl_verl": __version__,
        "step": step,
        "split": split,
        "seed": seed,
        "task": _part("tasks", team.task),
        "workflow": _part("workflows", team.workflow),
        "agents": {
            agent.name: {"policy": agent.policy, "reward": agent.reward, "instructions": agent.instructions}
            for agent in team.agents.values()
        },
        "algorithm": {"name": team.algorithm.name, "options": algorithm.options()},
        "sampler": {"name": sampler.name, "options": sampler.options, "sessions": sessions},
    }


def _part(kind: str, named: Named) -> dict[str, Any]:
    entry = plugins.load().entry(kind, named.name)
    return {
        "name": named.name,
        "options": named.options,
        "distribution": entry.distribution,
        "version": entry.version,
    }


def sample_lines(sample: Sample, uid: str, task: str, tokens: bool) -> list[str]:
    """The lines of one task: its episodes as the sampler has them, then its failures by session.

    Args:
        uid: of the task instance.
        task: its id.
        tokens: with token ids and log-probabilities.
    """
    failures = sorted(sample.failures, key=lambda failure: (failure.session, failure.reason, failure.detail))
    return [
        *(as_line(episode_data(episode, tokens)) for episode in sample.episodes),
        *(as_line(failure_data(failure, uid, task)) for failure in failures),
    ]


def as_line(data: dict[str, Any]) -> str:
    """One line of JSON, without its end; a text that UTF-8 cannot hold (half a surrogate pair) is escaped."""
    line = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    try:
        line.encode()
    except UnicodeEncodeError:
        return json.dumps(data, separators=(",", ":"))
    return line


def episode_data(episode: Episode, tokens: bool) -> dict[str, Any]:
    """An episode as a JSON value. What its turns saw and said stands in the journal; of `others`, in themselves."""
    without = CLOCK if tokens else CLOCK + TOKENS
    return {
        "id": episode.id,
        "uid": episode.uid,
        "session": episode.session,
        "task": {"id": episode.task.id, "prompt": episode.task.prompt, "data": episode.task.data},
        "answer": plain(episode.answer),
        "success": bool(episode.success),
        "score": float(episode.score),
        "finished": episode.finished,
        "turns": [_turn(turn) for turn in episode.turns],
        "others": [
            {**_turn(turn), "observation": turn.observation, "action": _action(turn.action, without)}
            for turn in episode.others
        ],
        "journal": episode.journal.to_data(without),
    }


def failure_data(failure: Failure, uid: str, task: str) -> dict[str, Any]:
    """A failed attempt as a JSON value."""
    detail = _ADDRESS.sub("", failure.detail)
    return {"failure": failure.reason, "detail": detail, "uid": uid, "session": failure.session, "task": task}


def _turn(turn: Turn) -> dict[str, Any]:
    return {
        "session": turn.session,
        "index": turn.index,
        "agent": turn.agent,
        "called": turn.called,
        "slot": turn.slot,
        "turn": turn.turn,
        "policy": turn.policy,
        "node": turn.node,
        "parent": turn.parent,
        "length": turn.action.length,
        "rewards": {component: float(turn.rewards[component]) for component in sorted(turn.rewards)},
        "invalid": turn.invalid,
    }


def _action(action: Action, without: tuple[str, ...]) -> dict[str, Any]:
    names = (field.name for field in dataclasses.fields(action))
    return {name: getattr(action, name) for name in names if name not in without}


def plain(value: Any) -> Any:
    """An answer as a JSON value: dataclasses as their fields, sets sorted, and what JSON has no form for as its `repr`
    (without addresses). So a replayed answer can be compared with a stored one."""
    try:
        return json.loads(json.dumps(value, default=_plain))
    except (TypeError, ValueError):  # a key that is no text, or a value that holds itself
        return _shown(value)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, set | frozenset):
        return sorted((plain(each) for each in value), key=json.dumps)
    return _shown(value)


def _shown(value: Any) -> str:
    return _ADDRESS.sub("", repr(value))
