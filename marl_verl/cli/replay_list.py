"""What `marl-verl replay` prints of a whole file: one line an episode, and one a failed attempt."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from marl_verl.cli.output import harmless
from marl_verl.cli.replay_words import aligned, count, indented, line, origin
from marl_verl.journals.read import EpisodeFile, StoredEpisode, StoredFailure

MANY, FIRST, LAST = 40, 20, 5
"""Lines: of more than `MANY` the first `FIRST` and the last `LAST` are shown."""


def list_text(file: EpisodeFile, named: str, validation: Path | None = None) -> str:
    """What a file holds, with totals.

    Args:
        named: how the command line names the file.
        validation: a file of the same run with episodes of a validation.
    """
    episodes, failures = list(file.episodes.values()), file.failures
    lines = [origin(file), *_totals(episodes, failures)]
    if episodes:
        title = ["episode", "score", "turns", "beside", "", "task"]
        lines += ["", *_table(title, [_episode(each) for each in episodes])]
    if failures:
        title = ["failed", "reason", ""]
        lines += ["", *_table(title, [[each.id, each.reason, line(each.detail, 120)] for each in failures])]
    if episodes or failures:
        one = episodes[0].id if episodes else failures[0].id
        lines += ["", f"one of them: marl-verl replay {named} --episode {one}"]
    if validation is not None:
        lines += ["", f"of a validation: marl-verl replay {shlex.quote(str(validation))}"]
    return harmless("\n".join(lines))


def failure_text(file: EpisodeFile, failed: Sequence[StoredFailure]) -> str:
    """Failed attempts with one id, in full."""
    lines = [f"failed attempt {failed[0].id}, {origin(file)}", "", f"task {line(failed[0].task, 100)}"]
    for each in failed:
        lines += ["", each.reason, *indented(each.detail, 2)]
    return harmless("\n".join(lines))


def _totals(episodes: Sequence[StoredEpisode], failures: Sequence[StoredFailure]) -> list[str]:
    reasons = sorted(Counter(each.reason for each in failures).items())
    said = f" ({', '.join(f'{reason} {times}' for reason, times in reasons)})" if failures else ""
    lines = [f"{count(len(episodes), 'episode')}, {count(len(failures), 'failed attempt')}{said}"]
    if episodes:
        solved = sum(each.success for each in episodes)
        mean = sum(each.score for each in episodes) / len(episodes)
        lines.append(f"{solved} solved, mean score {mean:.3g}")
    return lines


def _episode(each: StoredEpisode) -> list[str]:
    state = ("solved" if each.success else "") if each.finished else "unfinished"
    turns, beside = len(each.data["turns"]), len(each.data["others"])
    return [each.id, f"{each.score:g}", str(turns), str(beside) if beside else "", state, line(each.task, 60)]


def _table(title: list[str], rows: list[list[str]]) -> list[str]:
    left_out = len(rows) - FIRST - LAST
    if len(rows) <= MANY:
        return aligned([title, *rows])
    shown = aligned([title, *rows[:FIRST], *rows[-LAST:]])
    return [*shown[: FIRST + 1], f"[{left_out} left out; --json has all]", *shown[FIRST + 1 :]]
