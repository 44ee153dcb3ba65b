"""`marl-verl replay FILE [--episode ID]`: replay a stored episode and show it."""

import argparse
import shlex
import sys
from pathlib import Path

from marl_verl.cli import arguments
from marl_verl.cli.arguments import file_content, set_folder
from marl_verl.episode import Episode
from marl_verl.inspect import replay_text
from marl_verl.inspect.episodes import EpisodeFile
from marl_verl.inspect.replay import changes, replay
from marl_verl.inspect.run_files import read_episode, run_of, use_plugin_files
from marl_verl.run.run_dir import RunDir, unpacked
from marl_verl.run.terminal import harmless, show

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
  marl-verl replay runs/paths --episode s12t00000_0 --edit mover:0 b4      what if the mover had said b4?
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Replay a stored episode without a model, and show it as a conversation with its rewards."
    arguments.add_plugin_argument(parser)
    arguments.add_file_arguments(parser, "a file of journals/ or episodes/ of a run")
    parser.add_argument("--episode", metavar="ID", help="id of the episode (default: list all, or show the only one)")
    parser.add_argument("--stored", action="store_true", help="show the stored episode without a replay")
    parser.add_argument("--json", action="store_true", help="print JSON")
    edit = "continue from an act such as mover:0 with this text as its action, and with its own, by the run's models"
    parser.add_argument("--edit", nargs=2, metavar=("ACT", "TEXT"), help=edit)
    continuations = "of --edit: sampled continuations of both (default: 1, greedy)"
    parser.add_argument("--continuations", type=int, metavar="N", help=continuations)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="of --edit, as of `marl-verl eval`")
    arguments.add_backend_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Exit code 2 also where the replay differs from the stored episode."""
    if options.edit is not None:
        _edit(options)
    problem = None if options.edit and options.json else _shown(options)
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


def _edit(options: argparse.Namespace) -> None:
    """Continue the episode, print the effects, and choose the first edited continuation as the episode to show."""
    from marl_verl.cli.eval import evaluated  # here: the rest imports neither Hydra nor torch

    set_folder(options)
    chosen = {"edit": (options.episode or "", *options.edit), "episodes": options.continuations, "step": options.step}
    file = evaluated(Path(options.file), options.overrides, options, {**chosen, "backend": options.backend})
    options.file, options.episode, options.stored, options.step = str(file), "edited_0", True, None


def _chosen(options: argparse.Namespace) -> tuple[str, bytes]:
    """(name, content) of the given file; of a run, that of the given episode's step, --step, or the latest."""
    set_folder(options)
    use_plugin_files(options.folder or run_of(options.file), options.plugin)
    if options.folder is None:
        return file_content(options)
    return read_episode(options.folder, options.episode, options.step)


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
