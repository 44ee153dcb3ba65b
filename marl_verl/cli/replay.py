"""`marl-verl replay FILE [--episode ID]`: replay a stored episode and show it."""

import argparse
import re
import shlex
import sys
from pathlib import Path

from marl_verl.cli.arguments import add_file_arguments, add_plugin_argument, file_content, set_folder
from marl_verl.episode import Episode
from marl_verl.inspect import replay_text
from marl_verl.inspect.episodes import EpisodeFile
from marl_verl.inspect.replay import changes, replay
from marl_verl.inspect.run_files import read_step, run_of, use_plugin_files
from marl_verl.run.run_dir import RunDir, unpacked
from marl_verl.run.terminal import harmless, show

TRAINING = "s"
"""First letter of a training episode's id (`s12t00000_0`: step 12). Validations have others."""

EXAMPLES = """
FILE is a file of a run's journals/ (one per training step) or episodes/ (some episodes of each validation): JSON lines.
The workflow runs again with the recorded actions and call results; no model is queried and no call is executed. The
answer is scored again. Exit code 2 where the result differs from the stored one, or a line cannot be read. FILE may be
compressed with gzip or zstd; - is standard input.

  marl-verl replay runs/inventory-1/journals/step_00012.jsonl    list the file's episodes, or show the only one
  marl-verl replay runs/inventory-1 --step 12              the same file; default: the latest step
  marl-verl replay runs/inventory-1 --episode s7t00000_1   the id has the step; g20t00000_0 is of a validation
  marl-verl replay FILE --episode s12t00000_0                    one episode: observations, actions and rewards
  marl-verl replay FILE --episode s12t00000_0 --stored           the stored episode, without a replay or its plugin
  marl-verl replay FILE --episode s12t00000_0 --json             in full, for programs
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Replay a stored episode without a model, and show it as a conversation with its rewards."
    add_plugin_argument(parser)
    add_file_arguments(parser, "a file of journals/ or episodes/ of a run")
    parser.add_argument("--episode", metavar="ID", help="id of the episode (default: list all, or show the only one)")
    parser.add_argument("--stored", action="store_true", help="show the stored episode without a replay")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Exit code 2 also where the replay differs from the stored episode."""
    problem = _shown(options)
    if problem is not None:
        print(f"marl-verl: {harmless(problem)}", file=sys.stderr)
    return 0 if problem is None else 2


def _shown(options: argparse.Namespace) -> str | None:
    """Print the list or the episode. Returns how the replay differs, None where it does not."""
    source, content = _chosen(options)
    file = EpisodeFile.parse(unpacked(content, source), source)
    name = options.episode
    if name is None and len(file.episodes) == 1 and not file.failures:
        name = next(iter(file.episodes))
    if name is None:
        _list(file, options)
        return None
    failures = [failure for failure in file.failures if failure.id == name and name not in file.episodes]
    if failures:
        records = [replay_text.failure_record(failure) for failure in failures]
        show(replay_text.as_json(records) if options.json else replay_text.failure_text(file, failures))
        return None
    return _episode(file, file.episode(name), options)


def _chosen(options: argparse.Namespace) -> tuple[str, bytes]:
    """(name, content) of the given file; of a run, that of the given episode's step, --step, or the latest."""
    set_folder(options)
    use_plugin_files(options.folder or run_of(options.file), options.plugin)
    if options.folder is None:
        return file_content(options)
    place = re.match(r"([a-z])(\d+)t\d", options.episode or "")
    step = options.step if options.step is not None or place is None else int(place[2])
    if place and place[1] != TRAINING:
        remedy = "validate with marl.rollout.keep_episodes=4"
        return read_step("replay", options.folder, "episodes", remedy, "validation", step)
    remedy = "train it with marl.run.keep_journals=1"
    return read_step("replay", options.folder, "journals", remedy, step=step)


def _list(file: EpisodeFile, options: argparse.Namespace) -> None:
    if options.json:
        show(replay_text.as_json(replay_text.list_record(file)))
    else:
        named, validations = shlex.quote(options.file), {}
        if options.folder is not None:
            named = f"{shlex.quote(str(options.folder))} --step {file.header.step}"
            validations = RunDir(options.folder).stored("episodes")
        show(replay_text.list_text(file, named, next(reversed(validations.values()), None)))


def _episode(file: EpisodeFile, episode: Episode, options: argparse.Namespace) -> str | None:
    again = None if options.stored else replay(file, episode)
    if options.json:
        show(replay_text.as_json(replay_text.episode_record(file, episode, again)))
    else:
        show(replay_text.episode_text(file, episode, again, _run(file, options)))
    return None if again is None else changes(file, episode, again)


def _run(file: EpisodeFile, options: argparse.Namespace) -> str | None:
    """The file's run, quoted for a command line; None unless it has also stored the rows of that step."""
    folder: Path | None = options.folder
    if folder is None and (parent := Path(options.file).parent).name == "journals":
        folder = parent.parent
    stored = folder is not None and file.header.step in RunDir(folder).stored("rows")
    return shlex.quote(str(folder)) if stored else None
