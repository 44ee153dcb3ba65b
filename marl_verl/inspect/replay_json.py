"""The output of `marl-verl replay --json`: the list of episodes, or one episode in full."""

from __future__ import annotations

import json
from typing import Any

from marl_verl.episode import Act, CallRecord, Episode, Turn
from marl_verl.episode.codec import encode_call
from marl_verl.inspect.episodes import EpisodeFile, StoredFailure
from marl_verl.inspect.replay import Rerun


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)


def list_record(file: EpisodeFile) -> dict[str, Any]:
    """The content of a file as a JSON value."""
    header = file.header
    return {
        **_fields(header, "step", "split"),
        **{part: getattr(header, part).name for part in ("workflow", "task", "algorithm", "sampler")},
        "episodes": [
            {
                **_fields(episode, "id", "score", "success", "finished", "turns"),
                "task": episode.task.id,
                "off_path_turns": len(episode.off_path_turns),
            }
            for episode in file.episodes.values()
        ],
        "failures": [failure_record(failure) for failure in file.failures],
        "damaged": file.damaged,
    }


def failure_record(failure: StoredFailure) -> dict[str, Any]:
    """A failed attempt as a JSON value."""
    return {"id": failure.id, "failure": failure.reason, **_fields(failure, "detail", "uid", "session", "task")}


def episode_record(file: EpisodeFile, episode: Episode, again: Rerun | None, masked: Rerun | None) -> dict[str, Any]:
    """One episode as a JSON value, with the results of its replay (`again`) and its masked replay (`masked`)."""
    turns, effects = {turn.key: _turn(turn) for turn in episode.turns}, []
    for record in episode.journal:
        if isinstance(record, CallRecord):
            effects.append(encode_call(record))
        else:
            acted = turns.get(record.act.key) or {**_act(record.act), "action": record.action.text}
            effects.append({"effect": "act", **acted})
    whole = {
        "id": episode.id,
        "step": file.header.step,
        "workflow": file.header.workflow.name,
        "task": _fields(episode.task, "id", "prompt", "data"),
        "agents": {name: vars(agent) for name, agent in file.header.agents.items()},
        **_fields(episode, "finished", "answer", "score", "success"),
        **({"outcomes": episode.outcomes} if episode.outcomes else {}),
        "effects": effects,
        "off_path_turns": [_turn(turn) for turn in episode.off_path_turns],
    }
    if again is not None:
        whole["replay"] = _outcome(again)
    if masked is not None:
        whole["masked"] = {
            "acts": masked.named(masked.masked),
            "placeholder": masked.placeholder,
            "changed": masked.named(masked.changed),
            "missed": [":".join(key) for key in masked.missed],
            **_outcome(masked),
            "difference": masked.difference(again),
        }
    return whole


def _fields(value: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _act(act: Act) -> dict[str, Any]:
    asked = {"parameters": act.parameters} if act.parameters else {}
    return {"agent": act.agent, "slot": act.slot, "observation": list(act.observation), **asked}


def _turn(turn: Turn) -> dict[str, Any]:
    shown: dict[str, Any] = {"observation": list(turn.observation), "action": turn.action.text}
    shown |= {"parameters": turn.parameters} if turn.parameters else {}
    shown |= {"tool_calls": turn.action.tool_calls} if turn.action.tool_calls else {}
    names = ("agent", "called", "policy", "slot", "turn", "session", "index", "node", "parent", "length", "invalid")
    return {**_fields(turn, *names), "rewards": turn.components, **shown}


def _outcome(again: Rerun) -> dict[str, Any]:
    return {
        "finished": again.finished,
        "stands_at": [_act(act) for act in again.waiting],
        "ended": again.ended,
        "answer" if again.finished else "proposal": again.answer,
        **_fields(again, "score", "success"),
    }
