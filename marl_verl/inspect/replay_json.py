"""What `marl-verl replay --json` prints: the list of episodes, or one of them in full."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from marl_verl.episode import Act, Action, ActRecord, CallRecord, Episode, Turn
from marl_verl.episode.codec import encode_record, encode_turn
from marl_verl.inspect.rerun import Key, Rerun
from marl_verl.journals.read import EpisodeFile, StoredFailure


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)


def list_record(file: EpisodeFile) -> dict[str, Any]:
    """What a file holds, for programs."""
    return {
        "step": file.header.step,
        "split": file.header.split,
        "workflow": file.header.workflow.name,
        "task": file.header.task.name,
        "algorithm": file.header.algorithm.name,
        "sampler": file.header.sampler.name,
        "episodes": [
            {
                "id": each.id,
                "task": each.task,
                "score": each.score,
                "success": each.success,
                "finished": each.finished,
                "turns": len(each.turns),
                "others": len(each.others),
            }
            for each in file.episodes.values()
        ],
        "failures": [failure_record(each) for each in file.failures],
        "damaged": file.damaged,
    }


def failure_record(failure: StoredFailure) -> dict[str, Any]:
    """A failed attempt, for programs."""
    who = {"uid": failure.uid, "session": failure.session, "task": failure.task}
    return {"id": failure.id, "failure": failure.reason, "detail": failure.detail, **who}


def episode_record(file: EpisodeFile, episode: Episode, again: Rerun | None, masked: Rerun | None) -> dict[str, Any]:
    """One episode in full, for programs.

    Args:
        again: what came of running it again; None where it was not.
        masked: the same with some acts masked.
    """
    turns = {turn.key: turn for turn in episode.turns}
    effects = [_effect(record, turns) for record in episode.journal]
    record = {
        "id": episode.id,
        "step": file.header.step,
        "workflow": file.header.workflow.name,
        "task": {"id": episode.task.id, "prompt": episode.task.prompt, "data": episode.task.data},
        "agents": {name: vars(agent) for name, agent in file.header.agents.items()},
        "finished": episode.finished,
        "answer": episode.answer,
        "score": episode.score,
        "success": episode.success,
        "effects": effects,
        "others": [_turn(turn) for turn in episode.others],
    }
    if again is not None:
        record["replay"] = _outcome(again)
    if masked is not None:
        record["masked"] = {
            "acts": [":".join(act.key) for act in masked.acts() if act.key in masked.masked],
            "changed": [":".join(act.key) for act in masked.acts() if act.key in masked.changed],
            "missed": [":".join(key) for key in masked.missed],
            **_outcome(masked),
            "difference": masked.difference(again),
        }
    return record


def _effect(record: ActRecord | CallRecord, turns: Mapping[Key, Turn]) -> dict[str, Any]:
    if isinstance(record, ActRecord):
        turn = turns.get(record.act.key)
        return {"effect": "act", **(_act(record.act, record.action) if turn is None else _turn(turn))}
    return encode_record(record)


def _act(act: Act, action: Action) -> dict[str, Any]:
    return {"agent": act.agent, "slot": act.slot, "observation": list(act.observation), "action": action.text}


def _turn(turn: Turn) -> dict[str, Any]:
    return {
        **encode_turn(turn),
        "rewards": turn.components,
        "observation": list(turn.observation),
        "action": turn.action.text,
    }


def _outcome(again: Rerun) -> dict[str, Any]:
    return {
        "finished": again.finished,
        "stands_at": [{"agent": a.agent, "slot": a.slot, "observation": list(a.observation)} for a in again.waiting],
        "ended": again.ended,
        "answer" if again.finished else "proposal": again.answer,
        "score": again.score,
        "success": again.success,
    }
