"""Plugin: the seconds of every act of a run, one per line, in the file that LATENCIES names, for `scaling.py`.

export LATENCIES=/tmp/latencies.txt
marl-verl train recipes/quickstart/pretrained.yaml --plugin tests/benchmarks/latencies.py
"""

from __future__ import annotations

import os
from typing import Any

from marl_verl import hookimpl


@hookimpl
def marl_episode_finished(episode: Any) -> None:
    with open(os.environ["LATENCIES"], "a", encoding="utf-8") as file:
        file.writelines(f"{turn.action.seconds}\n" for turn in episode.turns)
