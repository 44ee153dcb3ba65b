"""`marl-verl replay RUN|FILE [--episode ID]`: replay a stored episode and show it."""

import argparse
import sys

from marl_verl.cli import arguments
from marl_verl.inspect.replay import differences, episode_text, list_text, replay
from marl_verl.inspect.run_files import file_of_episode, read_episodes, run_of, use_plugin_files
from marl_verl.run.terminal import harmless, show

EXAMPLES = """
FILE is a file of a run's journals/ (one per training step) or episodes/ (some episodes of each validation): JSON lines,
optionally compressed. The workflow runs again with the recorded actions and call results; no model is queried and no
call is executed. The answer is scored again. Exit code 2 where the result differs from the stored one.

  marl-verl replay runs/inventory-1 --step 12              the episodes of a step; default: the latest
  marl-verl replay runs/inventory-1 --episode s7t00000_1   one episode: observations, actions and rewards
  marl-verl replay runs/inventory-1 --episode g20t00000_0  the id has the step; this one is of a validation
  marl-verl replay FILE --episode s12t00000_0 --stored     the stored episode, without a replay or its plugin
  marl-verl replay runs/paths --episode s12t00000_0 --edit mover:0 b4      what if the mover had said b4?
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Replay a stored episode without a model, and show it as a conversation with its rewards."
    arguments.add_plugin_argument(parser)
    arguments.add_file_arguments(parser, "a file of journals/ or episodes/ of a run")
    parser.add_argument("--episode", metavar="ID", help="id of the episode (default: list all, or show the only one)")
    parser.add_argument("--stored", action="store_true", help="show the stored episode without a replay")
    edit = "continue from an act such as mover:0 with this text as its action, and with its own, by the run's models"
    parser.add_argument("--edit", nargs=2, metavar=("ACT", "TEXT"), help=edit)
    parser.add_argument("--continuations", type=int, metavar="N", help="of --edit: sampled ones (default: 1, greedy)")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="of --edit, as of `marl-verl eval`")
    arguments.add_backend_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Exit code 2 also where the replay differs from the stored episode."""
    if options.edit is not None:
        from marl_verl.cli.eval import evaluated  # here: the rest imports neither Hydra nor torch

        how = {"edit": (options.episode or "", *options.edit), "episodes": options.continuations, "step": options.step}
        options.source = evaluated(options.source, options.overrides, options, **how)
        options.episode, options.stored, options.step = "edited_0", True, None  # the first edited continuation
    use_plugin_files(run_of(options.source), options.plugin)
    file, name = read_episodes(file_of_episode(options.source, options.episode, options.step)), options.episode
    if name is None and len(file.episodes) == 1 and not file.failures:
        (name,) = file.episodes
    if name is None:
        show(list_text(file))
        return 0
    episode = file.episode(name)
    again = None if options.stored else replay(file.header, episode)
    show(episode_text(file.header, episode, again))
    changes = [] if again is None else differences(episode, again)
    if changes:
        problem = harmless(f"episode '{name}' is not what is stored: {'; '.join(changes)}")
        print("marl-verl:", " ".join(problem.split()), file=sys.stderr)
    return 2 if changes else 0
