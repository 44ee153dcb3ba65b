"""`marl-verl watch RUN`: serve the report of a running run on this machine."""

import argparse
from contextlib import suppress
from pathlib import Path

from marl_verl.cli.arguments import add_plugin_argument
from marl_verl.run.terminal import show

EXAMPLES = """
The page of `marl-verl report`, which follows the run: new metrics and steps appear within 2 s. Only this machine can
open the printed address; from another one, forward its port: ssh -L 8400:127.0.0.1:8400 HOST

  marl-verl watch runs/inventory-1                 a free port; Ctrl-C ends it, the run continues
  marl-verl watch runs/inventory-1 --port 8400
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Serve the report of a running run on this machine; it follows the run."
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="port on 127.0.0.1 (default: a free one)")
    add_plugin_argument(parser)


def run(options: argparse.Namespace) -> int:
    from marl_verl_report.serve import Server  # here: `--help` is fast

    with suppress(KeyboardInterrupt), Server(options.run, options.port, options.plugin) as server:
        show(f"watching {options.run}: open {server.address} (Ctrl-C ends this, not the run)")
        server.serve_forever()
    return 0
