"""One stored step for the page: its episodes as conversations, each turn with the derivation of its advantage."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from marl_verl_inspect.episodes import EpisodeFile, read_episodes
from marl_verl_inspect.explained import ExplainedRows

from marl_verl.episode import Act, Action, Episode, Turn
from marl_verl.episode.codec import encode_call
from marl_verl.episode.journal import CallRecord
from marl_verl.episode.messages import message_text
from marl_verl.errors import MarlError
from marl_verl.run.reading import read_rows
from marl_verl.run.run_dir import RunDir

MOST_MEMBERS = 64  # rows of a group that are listed with their returns

MEMBER = ("key", "return", "advantage")
NUMBERS = ("reward", "return", "baseline", "scale", "advantage")
KINDS = {"train": "journals", "test": "episodes"}  # kind of a step -> its folder in the run


def stored(folder: Path) -> dict[str, dict[int, Path]]:
    """Kind -> step -> file with episodes, of training ("train") and of validations ("test")."""
    return {kind: RunDir(folder).stored(part) for kind, part in KINDS.items()}


def read(folder: Path, kind: str, step: int, most: int | None = None) -> dict[str, Any]:
    """A stored step of a run in `overview.use` as JSON value, with the episodes of at most `most` tasks, the first
    ones, and as many failures. MarlError: its files are damaged."""
    file = read_episodes(stored(folder)[kind][step])
    explained, problem = _explained(folder, step) if kind == "train" else (None, None)
    return {"kind": kind, **of_file(file, most, explained, problem)}


def of_file(
    file: EpisodeFile, most: int | None = None, explained: ExplainedRows | None = None, problem: str | None = None
) -> dict[str, Any]:
    """A file of episodes as JSON value, with the rows of its step if they are stored."""
    rows = {} if explained is None else {row["key"]: row for row in explained}
    tasks: dict[str, list[Episode]] = {}
    for episode in file.episodes.values():
        tasks.setdefault(episode.uid, []).append(episode)
    shown = list(tasks)[:most]
    episodes = [_episode(episode, rows) for uid in shown for episode in tasks[uid]]
    failures = [{"id": failure.id, **vars(failure)} for failure in file.failures[:most]]
    return {
        "step": file.header.step,
        **{part: getattr(file.header, part).name for part in ("workflow", "task", "algorithm", "sampler")},
        "formulas": [] if explained is None else explained.header,
        "credits": [] if explained is None else explained.credits,
        "problem": problem,
        "failures": failures,
        "failures_left_out": len(file.failures) - len(failures),
        "groups": _groups(rows, shown),
        "episodes": episodes,
        "left_out": len(file.episodes) - len(episodes),
    }


def _explained(folder: Path, step: int) -> tuple[ExplainedRows | None, str | None]:
    """(rows of the step, None), or without them the reason; rows and advantages may differ, which is a reason too."""
    path = RunDir(folder).stored("rows").get(step)
    if path is None:
        return None, "The rows of this step are not stored (marl.run.keep_rows), so advantages are unknown."
    document = read_rows(path)
    try:
        explained = ExplainedRows(document, f"'{path}'")
    except MarlError as error:  # e.g. a part of a plugin that is not installed here
        return None, f"Advantages are not explained: {error}"
    return explained, explained.difference


def _groups(rows: Mapping[str, dict[str, Any]], uids: Collection[str]) -> dict[str, dict[str, Any]]:
    """The groups of the rows of shown tasks, by their first row, each with (key, return, advantage) of its rows."""
    groups = {row["members"][0]: row for key, row in rows.items() if key.rsplit("_", 2)[0] in uids}
    return {
        first: {
            "same": row["group"],
            "size": len(row["members"]),
            "members": [[rows[key][name] for name in MEMBER] for key in row["members"][:MOST_MEMBERS]],
        }
        for first, row in groups.items()
    }


def _episode(episode: Episode, rows: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """An episode as JSON value: its effects in order, where acts that are turns have their rewards and their row."""
    turns, effects = {turn.key: _turn(turn, rows) for turn in episode.turns}, []
    for record in episode.journal:
        if isinstance(record, CallRecord):
            effects.append(encode_call(record))
        else:
            effects.append({"effect": "act", **(turns.get(record.act.key) or _act(record.act, record.action))})
    names = ("id", "uid", "session", "leaf", "finished", "answer", "score", "success")
    return {
        **{name: getattr(episode, name) for name in names},
        "task": vars(episode.task),
        "effects": effects,
        "off_path_turns": [_turn(turn, rows) for turn in episode.off_path_turns],
    }


def _act(act: Act, action: Action) -> dict[str, Any]:
    observation = [[message["role"], message_text(message)] for message in act.observation]
    names = {"agent": act.agent, "slot": act.slot, "parameters": act.parameters, "tool_calls": action.tool_calls}
    return {**names, "observation": observation, "action": action.text}


def _turn(turn: Turn, rows: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    names = ("agent", "called", "session", "index", "node", "parent", "length", "invalid", "transition")
    shown = {**_act(turn.act, turn.action), **{name: getattr(turn, name) for name in names}, "rewards": turn.components}
    row = rows.get(turn.row)
    return shown if row is None or row["agent"] != turn.agent else {**shown, "row": _row(row)}


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    """What the page shows of a row; of advantages per token the least, the mean and the greatest."""
    shown = {name: row[name] for name in ("key", *NUMBERS, "weight", "columns", "transforms") if name in row}
    if tokens := row.get("tokens"):
        shown["tokens"] = [min(tokens), sum(tokens) / len(tokens), max(tokens)]
    return {**shown, "group": row["members"][0]}
