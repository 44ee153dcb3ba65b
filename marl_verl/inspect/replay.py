"""Replaying a stored episode with the workflow and the task set that its file names."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from marl_verl import plugins
from marl_verl.episode import Episode, Workflow, WorkflowError
from marl_verl.errors import MarlError, nearest
from marl_verl.inspect.rerun import Key, Rerun, differences, rerun
from marl_verl.journals.read import EpisodeFile, Supplied
from marl_verl.options import build
from marl_verl.plugins import KINDS
from marl_verl.tasks.base import TaskSet
from marl_verl.version import __version__

T = TypeVar("T")


def replay(file: EpisodeFile, episode: Episode, mask: Sequence[str] = ()) -> tuple[Rerun, Rerun | None]:
    """Run an episode again.

    Args:
        mask: acts, each as AGENT:SLOT, whose text is replaced by a placeholder.

    Returns:
        What came of it; the same with the masks, None without any.

    Raises:
        MarlError: an act that the episode does not have (nearest offered); a part of the file that is not registered
            here, or has changed; an episode that cannot be replayed.
    """
    return asyncio.run(_replay(file, episode, [_key(word, episode) for word in mask]))


async def _replay(file: EpisodeFile, episode: Episode, masked: list[Key]) -> tuple[Rerun, Rerun | None]:
    workflow = _built("workflows", file.header.workflow, Workflow, file)
    tasks = _built("tasks", file.header.task, TaskSet, file)
    agents, name = file.header.agents, file.header.workflow.name
    try:
        again = await rerun(workflow, tasks, agents, episode)
    except MarlError as error:
        said = str(error) if isinstance(error, WorkflowError) else f"workflow '{name}' ends, but {error}"
        changed = f"episode '{episode.id}' cannot be replayed: {said}{_versions(file)}"
        raise MarlError(f"{changed}; --stored shows it without running it") from error
    if not masked:
        return again, None
    try:
        return again, await rerun(workflow, tasks, agents, episode, masked)
    except MarlError as error:
        acts = ", ".join(":".join(key) for key in masked)
        said = f"episode '{episode.id}' of workflow '{name}' cannot be replayed without {acts}: {error}"
        raise MarlError(f"{said}; without --mask it can") from error


def changes(file: EpisodeFile, episode: Episode, again: Rerun) -> str | None:
    """How a replay differs from what is stored; None if it does not."""
    found = differences(episode, again)
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return f"episode '{episode.id}' is not what is stored: {found[0]}{more}{_versions(file)}" if found else None


def _built(kind: str, stored: Supplied, base: type[T], file: EpisodeFile) -> T:
    """A part that the file names, with its options. MarlError if it is not registered here, or has changed."""
    try:
        known, what = plugins.load(), KINDS[kind]
    except MarlError as error:  # one broken plugin, which need not be of this file
        raise MarlError(f"{error}; --stored shows episodes without any plugin") from error
    if stored.name not in known.names(kind):
        hint = nearest(stored.name, known.names(kind))
        origin = f"{stored.distribution} {stored.version}"
        raise MarlError(
            f"{file.source}: {what} '{stored.name}' is not registered here; it came from {origin}: install that, or "
            f"see whether {plugins.VARIABLE} leaves it out ({hint}); --stored shows episodes without it"
        )
    found = known.get(kind, stored.name)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise MarlError(f"{what} '{stored.name}' must be a subclass of {base.__name__}, it is {found!r:.80}")
    return build(found, stored.options, f"{what} '{stored.name}'")


def _versions(file: EpisodeFile) -> str:
    """What has another version here than where the file was written, in parentheses; empty where nothing has."""
    known, header = plugins.load(), file.header
    then, now = {"marl-verl": header.marl_verl}, {"marl-verl": __version__}
    for kind, part in (("workflows", header.workflow), ("tasks", header.task)):
        entry = known.entry(kind, part.name)
        then[part.distribution], now[part.distribution] = part.version, "not there"
        now[entry.distribution] = entry.version
    changed = [f"{name} was {then[name]} and is {now[name]} here" for name in then if then[name] != now[name]]
    return f" ({', '.join(changed)})" if changed else ""


def _key(word: str, episode: Episode) -> Key:
    """The act that AGENT:SLOT names. MarlError (nearest offered) if the episode has none."""
    acts = {":".join(record.act.key): record.act.key for record in episode.journal.acts()}
    if word not in acts:
        raise MarlError(f"episode '{episode.id}' has no act '{word}': {nearest(word, acts)}")
    return acts[word]
