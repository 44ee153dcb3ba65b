"""`python -m tests.benchmarks.results`: write docs/results.md from the stored cells, and train missing ones.

    python -m tests.benchmarks.results                                  write the page, as `make results`
    python -m tests.benchmarks.results --claim dr-mas --seeds 0 1       train the missing cells of a claim first
    MARL_VERL_LONG=1 make results                                       train all missing cells first: hours

Cells are trained one at a time, in runs/results/. A cell is stored when its run has ended, so that the command can be
interrupted and repeated.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys

from tests.benchmarks.results import cells, page
from tests.benchmarks.results.claim import SEEDS
from tests.benchmarks.results.claims import CLAIMS


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.results", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    names = [claim.name for claim in CLAIMS]
    parser.add_argument("--claim", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--arm", nargs="+", help="only these arms")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS, metavar="SEED")
    parser.add_argument("--list", action="store_true", help="print the commands of the missing cells, train nothing")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as an exception, which ends the run
    everything = bool(os.environ.get("MARL_VERL_LONG")) or options.list
    for claim in CLAIMS:
        if claim.name not in (options.claim or (names if everything else ())):
            continue
        for arm, seed in list(cells.missing(claim, options.seeds)):
            if options.arm and arm.name not in options.arm:
                continue
            print(f"{claim.name}, {arm.name}, seed {seed}: {shlex.join(claim.command(arm, seed))}", flush=True)
            if not options.list:
                cell = cells.run(claim, arm, seed)
                cells.store(claim, cell)
                print(f"    {cell['seconds']} s, {cell['metrics']}", flush=True)
    if not options.list:
        page.PAGE.write_text(page.text(CLAIMS), encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("interrupted: repeat the command to continue")
