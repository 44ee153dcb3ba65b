"""`python -m marl_verl.main_ppo key=value ...`: train with the overrides of a verl script, plus `marl.*` for a team."""

import argparse
from collections.abc import Sequence

from marl_verl.api import train, use_installed_verl
from marl_verl.cli.main import reported
from marl_verl_scripts.verl_script import translate


def main(arguments: Sequence[str] | None = None) -> int:
    """Train. Exit codes as `marl-verl`."""
    parser = argparse.ArgumentParser("python -m marl_verl.main_ppo", description=__doc__, allow_abbrev=False)
    parser.epilog = "marl-verl train --resume RUN continues a run. docs/from-verl.md has a table of verl's keys."
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="verl's keys, and those of marl.*")
    parser.add_argument("--dry-run", action="store_true", help="check everything, print the team, start nothing")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    options = parser.parse_intermixed_args(arguments)

    def run() -> int:
        use_installed_verl()
        recipe, overrides, dropped = translate(options.overrides)
        if dropped:
            print(f"dropped, it changes nothing of what is trained: {', '.join(dropped)}")
        train(recipe, overrides, dry_run=options.dry_run)
        return 0

    return reported(run, options.debug)
