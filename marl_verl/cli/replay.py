"""`marl-verl replay FILE [--episode ID] [--mask AGENT:SLOT]`: a stored episode, run again and shown."""

from __future__ import annotations

import argparse
import asyncio
import re
import shlex
import sys
from pathlib import Path
from typing import Any, TypeVar

from marl_verl import __version__, plugins
from marl_verl.cli import replay_json, replay_text
from marl_verl.cli.files import add_file_arguments, chosen, unpacked
from marl_verl.cli.output import harmless, show
from marl_verl.cli.replay_list import failure_text, list_text
from marl_verl.episode import Episode, Workflow, WorkflowError
from marl_verl.errors import MarlError, nearest
from marl_verl.hookspecs import KINDS
from marl_verl.journals.read import EpisodeFile, Supplied
from marl_verl.journals.rerun import Key, Rerun, differences, rerun
from marl_verl.options import build
from marl_verl.tasks.base import TaskSet
from marl_verl.trainer.run_dir import RunDir

T = TypeVar("T")

TRAINING = "s"
"""How the id of a training episode begins: `s12t00000_0` is of step 12. Those of validations have other letters."""

EXAMPLES = """
FILE is what a run writes to journals/ (every training step) and episodes/ (some of a validation): JSON lines, with all
that a replay needs. The workflow runs again with the recorded actions and call results; no model is asked, nothing is
called. The answer is scored anew. Exit code 2 where something differs from what is stored,
or cannot be read. FILE may be packed with gzip; - is standard input.

  marl-verl replay runs/inventory-1/journals/step_00012.jsonl    what the file holds; its only episode, if it has one
  marl-verl replay --run runs/inventory-1 --step 12              the same file; without --step the newest
  marl-verl replay --run runs/inventory-1 --episode s7t00000_1   an id says its step; g20t00000_0 is of a validation
  marl-verl replay FILE --episode s12t00000_0                    one episode: who saw what, said what, and earned what
  marl-verl replay FILE --episode s12t00000_0 --mask holder:0    what it comes to if the holder's first act said nothing
  marl-verl replay FILE --episode s12t00000_0 --stored           without running anything: the plugin may be missing
  marl-verl replay FILE --episode s12t00000_0 --json             in full, for programs
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Run a stored episode again, without a model, and show it as a conversation with its rewards."
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_file_arguments(parser, "a file of journals/ or episodes/ of a run")
    parser.add_argument("--episode", metavar="ID", help="which episode; left out: a list of them, or the only one")
    parser.add_argument(
        "--mask",
        action="append",
        default=[],
        metavar="AGENT:SLOT",
        help="replace what this act said by a placeholder, and keep all other texts; may be repeated",
    )
    parser.add_argument("--stored", action="store_true", help="show what is stored, and run nothing")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print to standard output. MarlError (exit code 2) for whatever is wrong, before anything is printed; 2 also where
    the replay reached the stored end with another answer, score or mark, and where lines of a listed file are damaged.
    """
    if options.stored and options.mask:
        raise MarlError("--mask replays and --stored does not: give one of them")
    source, content = _chosen(options)
    file = EpisodeFile.parse(unpacked(content, source), source)
    name = options.episode
    if name is None:
        alone = len(file.episodes) == 1 and not file.damaged and (options.mask or not file.failures)
        if not alone and options.mask:
            which = f"which of the {len(file.episodes)} episodes of {source}? give --episode ID"
            raise MarlError(which if file.episodes else f"{source} has no episode of which an act could be masked")
        if not alone:
            return _list(file, options)
        name = next(iter(file.episodes))
    if name not in file.episodes and (failed := file.failed(name)):
        if options.mask:
            raise MarlError(f"'{name}' is a failed attempt ({failed[0].reason}): it has no act to mask")
        records = [replay_json.failure_record(each) for each in failed]
        show(replay_json.as_json(records) if options.json else failure_text(file, failed))
        return 0
    return _episode(file, file.episode(name), options)


def _chosen(options: argparse.Namespace) -> tuple[str, bytes]:
    """The file that the user named; of a run the step whose episode is wanted, or the newest."""
    example = "journals/step_00012.jsonl"
    place = re.match(r"([a-z])(\d+)t\d", options.episode or "")
    step = int(place[2]) if place else None
    if place and place[1] != TRAINING:
        remedy = "validate with marl.rollout.keep_episodes=4"
        return chosen(options, RunDir.stored_episodes, example, remedy, "validation", step)
    return chosen(options, RunDir.stored_journals, example, "train it with marl.run.keep_journals=1", step=step)


def _list(file: EpisodeFile, options: argparse.Namespace) -> int:
    if options.json:
        show(replay_json.as_json(replay_json.list_record(file)))
    else:
        validations = {} if options.folder is None else RunDir(options.folder).stored_episodes()
        show(list_text(file, _named(file, options), next(reversed(validations.values()), None)))
    if file.damaged:
        more = f" (and {len(file.damaged) - 1} more)" if len(file.damaged) > 1 else ""
        print(f"marl-verl: {harmless(f'{file.source}: {file.damaged[0]}{more}')}", file=sys.stderr)
    return 2 if file.damaged else 0


def _named(file: EpisodeFile, options: argparse.Namespace) -> str:
    """How the command line names a file; without what an episode's id says."""
    if options.folder is None:
        return shlex.quote(options.file)
    return f"--run {shlex.quote(str(options.folder))} --step {file.header.step}"


def _episode(file: EpisodeFile, episode: Episode, options: argparse.Namespace) -> int:
    """Run one episode again and show it."""
    masked = [_key(word, episode) for word in options.mask]
    again, without = (None, None) if options.stored else asyncio.run(_replayed(file, episode, masked))
    if options.json:
        show(replay_json.as_json(replay_json.episode_record(file, episode, again, without)))
    else:
        show(replay_text.episode_text(file, episode, again, without, _run(file, options)))
    if again is not None and (found := differences(episode, again)):
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        said = f"episode '{episode.id}' is not what is stored: {found[0]}{more}{_versions(file)}"
        print(f"marl-verl: {harmless(said)}", file=sys.stderr)
        return 2
    return 0


def _run(file: EpisodeFile, options: argparse.Namespace) -> str | None:
    """The run that a file belongs to, for a command line, if that has also stored the rows of its step."""
    folder: Path | None = options.folder
    if folder is None and (parent := Path(options.file).parent).name == "journals":
        folder = parent.parent
    if folder is None or file.header.step not in RunDir(folder).stored_rows():
        return None
    return shlex.quote(str(folder))


async def _replayed(file: EpisodeFile, episode: Episode, masked: list[Key]) -> tuple[Rerun, Rerun | None]:
    """The episode run again, and with some acts masked."""
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
    acts: dict[str, Any] = {":".join(record.act.key): record.act.key for record in episode.journal.acts()}
    if word not in acts:
        raise MarlError(f"episode '{episode.id}' has no act '{word}': {nearest(word, acts)}")
    key: Key = acts[word]
    return key
