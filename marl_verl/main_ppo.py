"""`python -m marl_verl.main_ppo key=value ...`: train with the overrides of a verl script, plus `marl.*` for a team."""

import sys

from marl_verl.cli.main import reported
from marl_verl.extensions import required


def main() -> int:
    """Train with the arguments of the process. Exit codes as `marl-verl`."""
    return int(required("main", "main_ppo", "the overrides of a verl script cannot be translated", "scripts")())


if __name__ == "__main__":
    sys.exit(reported(main))
