"""`marl-verl report RUN [RUN ...]`: write one HTML file that shows and compares runs."""

import argparse
from pathlib import Path

from marl_verl.cli.arguments import add_plugin_argument
from marl_verl.run.terminal import show

EXAMPLES = """
The file needs no network: learning curves, episodes with the derivation of each advantage, trees, and how to reproduce
the runs. It contains the episodes of the first tasks of up to 24 stored steps of training and 24 validations per run.

  marl-verl report runs/inventory-1                          write runs/inventory-1/report.html
  marl-verl report runs/inventory-1 runs/inventory-2         compare two runs, in runs/inventory-1/report.html
  marl-verl report runs/inventory-1 --output /tmp/r.html --tasks 40
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Write one HTML file that shows and compares runs."
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument("--output", type=Path, metavar="FILE", help="the file (default: report.html in the first run)")
    tasks = "tasks of each step whose episodes are included (default: %(default)s)"
    parser.add_argument("--tasks", type=int, default=8, metavar="N", help=tasks)
    add_plugin_argument(parser)


def run(options: argparse.Namespace) -> int:
    from marl_verl_report import build  # here: `--help` is fast

    output = options.output or options.runs[0] / "report.html"
    size = build.write(options.runs, output, options.tasks, options.plugin)
    show(f"report {output} ({size / 1e6:.1f} MB)")
    return 0
