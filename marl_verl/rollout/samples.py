"""An episode as a JSON value, for people to read and for `journal` to replay."""

from __future__ import annotations

import json
from typing import Any

from marl_verl.episode import Episode


def episode_sample(episode: Episode) -> dict[str, Any]:
    """The task, what everybody saw and said, what it earned, and the journal."""
    return {
        "uid": episode.uid,
        "session": episode.session,
        "task": {"id": episode.task.id, "prompt": episode.task.prompt, "data": episode.task.data},
        "success": episode.success,
        "answer": episode.answer if isinstance(episode.answer, str | int | float | None) else repr(episode.answer),
        "turns": [
            {
                "agent": turn.agent,
                "slot": turn.slot,
                "policy": turn.policy,
                "observation": [dict(message) for message in turn.observation],
                "action": turn.action.text,
                "rewards": turn.rewards,
                "invalid": turn.invalid,
            }
            for turn in episode.turns
        ],
        "journal": json.loads(episode.journal.to_json()),
    }
