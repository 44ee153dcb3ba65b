"""One stored step for the page: its episodes as conversations, each turn with the derivation of its advantage."""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marl_verl.episode.errors import short
from marl_verl.episode.messages import message_text
from marl_verl.errors import MarlError
from marl_verl.inspect.episodes import EpisodeFile
from marl_verl.inspect.explained import ExplainedRows
from marl_verl.inspect.replay_text import episode_record, failure_record
from marl_verl.inspect.run_files import read_file
from marl_verl.run.run_dir import RunDir, unpacked

MOST_MEMBERS = 64
"""Rows of a group that are listed with their returns."""

MOST_FAILURES, MOST_DETAIL = 20, 1000
"""Failed attempts of a step, and characters of the detail of each, that a size limit admits."""

NUMBERS = ("reward", "return", "baseline", "scale", "advantage")
KINDS = {"train": "journals", "test": "episodes"}  # kind of a step -> its folder in the run


def stored(folder: Path) -> dict[str, dict[int, Path]]:
    """Kind -> step -> file with episodes, of training ("train") and of validations ("test")."""
    run = RunDir(folder)
    return {"train": run.stored("journals"), "test": run.stored("episodes")}


def read(folder: Path, kind: str, step: int, limit: int | None = None) -> dict[str, Any]:
    """A stored step as JSON value. With a `limit`, it has the first failed attempts, and the episodes of as many of
    the first tasks, at least one, that it compresses to `limit` bytes.

    The run's plugin files are in use (`use_plugin_files`). MarlError: the step is not stored, or its files are damaged.
    """
    source, content = read_file("replay", stored(folder)[kind][step], "step file")
    file = EpisodeFile.parse(unpacked(content, source), source)
    explained, problem = _explained(folder, step) if kind == "train" else (None, None)
    rows = {} if explained is None else {row["key"]: row for row in explained if not row["padding"]}
    groups = _Groups(rows)
    tasks: dict[str, list[str]] = {}
    for episode in file.episodes.values():
        tasks.setdefault(str(episode.data.get("uid")), []).append(episode.id)
    failures = [failure_record(failure) for failure in file.failures]
    if limit is not None:
        failures = [
            {**failure, "detail": short(failure["detail"], MOST_DETAIL)} for failure in failures[:MOST_FAILURES]
        ]
    header = file.header
    shared = {
        "kind": kind,
        "step": step,
        **{part: getattr(header, part).name for part in ("workflow", "task", "algorithm", "sampler")},
        "formulas": [] if explained is None else explained.header,
        "credits": [] if explained is None else explained.credits,
        "problem": problem,
        "failures": failures,
        "failures_left_out": len(file.failures) - len(failures),
    }
    episodes: list[dict[str, Any]] = []
    used = _size(shared)
    for names in tasks.values():
        before = len(groups.used)
        records = [_episode(file, name, rows, groups) for name in names]
        used += _size([records, groups.used[before:]])
        if limit is not None and episodes and used > limit:
            del groups.used[before:]
            break
        episodes += records
    return {**shared, "groups": groups.used, "episodes": episodes, "left_out": len(file.episodes) - len(episodes)}


def _size(value: object) -> int:
    return len(zlib.compress(json.dumps(value, default=str).encode(), 1))


def _explained(folder: Path, step: int) -> tuple[ExplainedRows | None, str | None]:
    """(rows of the step, None), or without them the reason; rows and advantages may differ, which is a reason too."""
    path = RunDir(folder).stored("rows").get(step)
    if path is None:
        return None, "The rows of this step are not stored (marl.run.keep_rows), so advantages are unknown."
    source, content = read_file("explain", path, "step file")
    try:
        document = json.loads(unpacked(content, source))
    except (ValueError, RecursionError) as error:
        raise MarlError(f"{source} is damaged: {error}") from error
    try:
        explained = ExplainedRows(document, source, stored=True)
    except MarlError as error:  # e.g. a part of a plugin that is not installed here
        return None, f"Advantages are not explained: {error}"
    return explained, explained.difference


class _Groups:
    """The groups of the shown rows, numbered in their order of use; each lists (key, return, advantage) of its rows."""

    def __init__(self, rows: Mapping[str, dict[str, Any]]) -> None:
        self._rows, self._numbers = rows, dict[str, int]()
        self.used: list[dict[str, Any]] = []

    def number(self, row: Mapping[str, Any]) -> int:
        members = row["members"]
        if members[0] not in self._numbers:  # a row is in one group
            self._numbers[members[0]] = len(self.used)
            known = [self._rows[key] for key in members[:MOST_MEMBERS]]
            shown = [[member["key"], member["return"], member["advantage"]] for member in known]
            self.used.append({"same": row["group"], "size": len(members), "members": shown})
        return self._numbers[members[0]]


def _episode(file: EpisodeFile, name: str, rows: Mapping[str, dict[str, Any]], groups: _Groups) -> dict[str, Any]:
    """`episode_record` without what all episodes share; turns with a stored row have it as "row"."""
    episode = file.episode(name)
    record = episode_record(file, episode)
    for shared in ("step", "workflow", "agents"):
        del record[shared]
    acts = [effect for effect in record["effects"] if effect["effect"] == "act"]
    for act in (*acts, *record["off_path_turns"]):
        act["observation"] = [[message["role"], message_text(message)] for message in act["observation"]]
    for turn in (*(act for act in acts if "rewards" in act), *record["off_path_turns"]):
        row = rows.get(f"{episode.uid}_{turn['session']}_{turn['index']}")
        if row is not None and row["agent"] == turn["agent"]:
            turn["row"] = _row(row, groups)
    return {**record, "uid": episode.uid, "session": episode.session, "leaf": episode.leaf}


def _row(row: Mapping[str, Any], groups: _Groups) -> dict[str, Any]:
    """What the page shows of a row; of advantages per token the least, the mean and the greatest."""
    shown = {name: row[name] for name in ("key", *NUMBERS, "weight", "columns", "transforms") if name in row}
    if tokens := row.get("tokens"):
        shown["tokens"] = [min(tokens), sum(tokens) / len(tokens), max(tokens)]
    also = {what: len(keys) for what, keys in row.get("also", {}).items()}
    return {**shown, "group": groups.number(row), "also": also}
