"""The output of `marl-verl explain RUN --forest`: what the rows of a task share (docs/shared_prefixes.md)."""

import itertools
from collections.abc import Iterator

import numpy as np

from marl_verl.backend.learning.forest import forest_of
from marl_verl.episode import Turn
from marl_verl.errors import MarlError, nearest
from marl_verl.inspect.episodes import EpisodeFile
from marl_verl.inspect.texts import count


def forest_text(file: EpisodeFile, uid: str | None) -> str:
    """The trees of a task's rows (default: the first task), of each policy, as if an update had only these.

    Raises:
        MarlError: no such task, or episodes without token ids.
    """
    names: dict[str, list[str]] = {}  # uid -> its episodes
    for name, stored in file.episodes.items():
        names.setdefault(stored.data["uid"], []).append(name)
    if not names or uid not in (None, *names):
        raise MarlError(f"{file.source} has no rows of task '{uid or ''}': {nearest(uid or '', names)}")
    rows: dict[str, Turn] = {}
    for episode in map(file.episode, names[uid or next(iter(names))]):
        rows |= {turn.row: turn for turn in (*episode.turns, *episode.off_path_turns) if not turn.transition}
    policies: dict[str, list[Turn]] = {}
    for turn in rows.values():
        if turn.action.prompt_ids and turn.action.response_ids:
            policies.setdefault(turn.policy, []).append(turn)
    if not policies:
        raise MarlError(f"{file.source} holds no token ids: train with marl.run.journal_tokens=true")
    return "\n\n".join("\n".join(_trees(policy, turns)) for policy, turns in policies.items())


def _trees(policy: str, turns: list[Turn]) -> Iterator[str]:
    tokens = [[*turn.action.prompt_ids, *turn.action.response_ids] for turn in turns]
    lengths = np.array([*map(len, tokens)])
    total = int(lengths.sum())
    forest = forest_of(np.concatenate(tokens), lengths, True, total)
    sizes, shared, place = (lengths - 1)[forest.order].tolist(), forest.shared.tolist(), 0
    parts = f"{count(len(turns), 'row')} of {total} tokens, {int(forest.sizes.sum())} computed"
    yield f"policy {policy}, task {turns[0].uid}: {parts} in {count(len(forest.sizes), 'tree')}"
    keys = [turns[row].row for row in forest.order]
    for members in forest.rows():
        end = place + len(members)
        yield from _branch(keys, sizes, shared, place, end, 0, "  ")
        place = end


def _branch(
    keys: list[str], sizes: list[int], shared: list[int], first: int, end: int, depth: int, indent: str
) -> Iterator[str]:
    """The rows from `first` to `end`, which share their first `depth` tokens, as lines."""
    common = min([sizes[first], *shared[first + 1 : end]])
    ended = [keys[row] for row in range(first, end) if sizes[row] == common]
    label = f"  {', '.join(ended)}" if ended else ""
    yield f"{indent}{count(common - depth, 'token')} of {count(end - first, 'row')}{label}"
    first += len(ended)  # sorted: rows that end come before those that go on
    starts = [row for row in range(first, end) if row == first or shared[row] == common]
    for begin, stop in itertools.pairwise([*starts, end]):
        yield from _branch(keys, sizes, shared, begin, stop, common, indent + "  ")
