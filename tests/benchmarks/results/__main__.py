"""`python -m tests.benchmarks.results`: write docs/results.md from the stored cells, and train missing ones.

    python -m tests.benchmarks.results                      write the page and its plots, as `make results`
    python -m tests.benchmarks.results --claim dr-mas       train a claim's missing cells first
    python -m tests.benchmarks.results --on-verl            train one seed of each claim on Ray and vLLM, for comparison
    MARL_VERL_LONG=1 make results                           train all missing cells first: hours

A claim has 20 seeds; the arms of a statement that they do not decide have 40, 80 and 160. A cell is stored when its run
has ended, so that the command can be interrupted and repeated.
"""

import argparse
import itertools
import os
import shlex
import sys
import time

from marl_verl_report import decide

from marl_verl.run.terminal import termination_as_interrupt
from tests.benchmarks.results import cells, page
from tests.benchmarks.results.claim import FEWEST
from tests.benchmarks.results.claims import CLAIMS


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.results", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    names = [claim.name for claim in CLAIMS]
    parser.add_argument("--claim", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--seeds", type=int, metavar="N", help="at most, if fewer than a claim has")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="runs at a time (default: 2)")
    parser.add_argument("--list", action="store_true", help="print the commands of the missing cells, train nothing")
    parser.add_argument("--on-verl", action="store_true", help="train seed 0 of each claim's first arm on Ray and vLLM")
    options = parser.parse_args()
    everything = bool(os.environ.get("MARL_VERL_LONG")) or options.list
    os.chdir(cells.ROOT)
    for claim in CLAIMS:
        if claim.name not in (options.claim or (names if everything or options.on_verl else ())):
            continue
        if options.on_verl:
            for cell in cells.train_on_verl(claim):
                print(f"{claim.name}, {cell['arm']}, on Ray and vLLM: {cell['metrics']}", flush=True)
            continue
        cells.borrow(claim, CLAIMS)
        for last, seeds in itertools.pairwise([0, *decide.looks(claim.most, FEWEST)]):
            # not by the seeds of a look that was interrupted
            arms = page.undecided(claim, [cell for cell in cells.stored(claim) if cell["seed"] < last])
            wanted = cells.missing(claim, arms, range(min(seeds, options.seeds or seeds)))
            if options.list and wanted:
                print("\n".join(shlex.join(claim.command(*cell)) for cell in wanted))
                break
            begun = time.monotonic()
            for done, cell in enumerate(cells.train(claim, wanted, options.jobs), 1):
                cells.store(claim, cell)
                count = f"{done} of {len(wanted)}, {(time.monotonic() - begun) / 60:.0f} min"
                print(f"{claim.name}, {cell['arm']}, seed {cell['seed']} ({count}): {cell['metrics']}", flush=True)
    if not options.list:
        page.write(CLAIMS)


if __name__ == "__main__":
    try:
        with termination_as_interrupt():
            main()
    except KeyboardInterrupt:
        sys.exit("interrupted: repeat the command to continue")
