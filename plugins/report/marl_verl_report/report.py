"""`marl-verl report RUN [RUN ...]`: write one HTML file with its styles, scripts and data, which needs no network.

The page gets its data as JSON and puts every text into the document with `textContent`; nothing is built from markup.
"""

import argparse
import base64
import gzip
import hashlib
import importlib.metadata
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from marl_verl.cli.arguments import add_plugin_argument, at_least
from marl_verl.errors import MarlError, user_error
from marl_verl.run.terminal import show
from marl_verl.version import __version__
from marl_verl_report import curves, overview, steps

TASKS = 8  # of each step, whose episodes a report contains
STEPS = 24  # stored steps of each kind (training, validation) per run whose episodes a report contains
SCRIPTS = ("basics.js", "charts.js", "advantage.js", "tree.js", "play.js", "episodes.js", "main.js")

EXAMPLES = """
The file needs no network: learning curves, episodes with the derivation of each advantage, trees, and how to reproduce
the runs. It contains the episodes of the first tasks of up to 24 stored steps of training and 24 validations per run.

  marl-verl report runs/inventory-1                          write runs/inventory-1/report.html
  marl-verl report runs/inventory-1 runs/inventory-2         compare two runs, in runs/inventory-1/report.html
  marl-verl report runs/inventory-1 --output /tmp/r.html --tasks 40
  marl-verl report runs/inventory-1 --serve                  the page of `marl-verl watch`, where acts can be edited
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument("--output", type=Path, metavar="FILE", help="the file (default: report.html in the first run)")
    tasks = f"tasks of each step whose episodes are included (default: {TASKS})"
    parser.add_argument("--tasks", type=at_least(0), metavar="N", help=tasks)
    serve = "serve the page of one run on this machine, as `marl-verl watch` does: there acts can be edited"
    parser.add_argument("--serve", action="store_true", help=serve)
    parser.add_argument("--port", type=at_least(0), metavar="N", help="of --serve (default: a free one)")
    add_plugin_argument(parser)


def run(options: argparse.Namespace) -> int:
    unused = {"--output": options.output, "--tasks": options.tasks} if options.serve else {"--port": options.port}
    if names := " and ".join(name for name, value in unused.items() if value is not None):
        other = "a file, which --serve does not write" if options.serve else "--serve, which is not given"
        raise MarlError(f"{names} {'are options' if ' ' in names else 'is an option'} of {other}: leave out {names}")
    if options.serve:
        from marl_verl_report import watch  # here: it imports this module

        if len(options.runs) > 1:
            raise MarlError("--serve shows one run, whose acts can be edited: leave out the others, or --serve")
        options.run, options.port = options.runs[0], options.port or 0
        return watch.run(options)
    output = options.output or options.runs[0] / "report.html"
    size = write(options.runs, output, TASKS if options.tasks is None else options.tasks, options.plugin)
    show(f"report {output} ({size / 1e6:.1f} MB)")
    return 0


def write(folders: Sequence[Path], output: Path, tasks: int, plugin_files: Sequence[Path] = ()) -> int:
    """Write the report of runs, with the first `tasks` tasks of each of up to `STEPS` stored steps; returns its size in
    bytes. MarlError: no run, a damaged file, or no place to write."""
    runs, packed = [], dict[str, str]()
    for at, (folder, name) in enumerate(zip(folders, distinct(folders), strict=True)):
        overview.use(folder, plugin_files)
        runs.append({**overview.read(folder), "name": name})
        for kind in steps.KINDS:
            for step in spread(runs[-1]["stored"][kind]):
                packed[f"{at}-{kind}-{step}"] = pack(steps.read(folder, kind, step, tasks))
    content = html(runs, packed)
    with user_error(f"'{output}' cannot be written. Give another file with --output", OSError):
        output.write_text(content, encoding="utf-8")
    return len(content.encode())


def html(runs: Sequence[overview.Run], steps_of: Mapping[str, str], live: bool = False) -> str:
    """The page of runs and stored steps (name -> result of `pack`), which reach its script as text, never as markup.
    Where it is live, it gets the episodes of a step, and later metrics, from its server.

    The page's policy allows these scripts only, by their hashes, and no connection except, where live, to its server.
    """
    script = "\n".join(['"use strict";', *(_file(name) for name in SCRIPTS)])
    hashes = (hashlib.sha256(text.encode()).digest() for text in (script, _plotly()))
    rules = {
        "default-src": "'none'",
        "script-src": " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in hashes),
        "style-src": "'unsafe-inline'",
        "img-src": "data: blob:",
        "connect-src": "'self'" if live else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    policy = "; ".join(f"{name} {value}" for name, value in rules.items())
    data = {"live": live, "version": __version__, "notes": curves.NOTES, "differences": differences(runs)}
    title = ", ".join(run["name"] for run in runs)
    values = {"data": base64.b64encode(json.dumps(data).encode()).decode(), "library": _library(), "runs": pack(runs)}
    values |= steps_of
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer"><link rel="icon" href="data:,">',
            f"<title>{escape(title)} - marl-verl report</title><style>{_file('page.css')}</style></head>",
            _file("page.html"),
            *(f'<script type="text/plain" id="blob-{name}">{text}</script>' for name, text in values.items()),
            f"<script>{script}</script></body></html>\n",
        ]
    )


def differences(runs: Sequence[overview.Run]) -> list[list[str]]:
    """Of each section of the settings that differs: its name, and in each run the lines that not all runs have."""
    rows = [["seed", *(str(run["seed"]) for run in runs)]]
    for name in dict.fromkeys(name for run in runs for name in run["config"]):
        lines = [run["config"].get(name, "").splitlines() for run in runs]
        common = set.intersection(*map(set, lines))
        rows.append([name, *("\n".join(line for line in of_run if line not in common) for of_run in lines)])
    return [row for row in rows if len({*row[1:]}) > 1]


def pack(value: object) -> str:
    """A JSON value, compressed with gzip, as base64. Equal values give equal texts."""
    return _packed(as_json(value).encode())


def as_json(value: object) -> str:
    """JSON for the page; NaN and infinity, which JSON lacks, as texts."""
    return json.dumps(_finite(value), separators=(",", ":"), default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def distinct(folders: Sequence[Path]) -> list[str]:
    """The names of run directories; of equal names, their paths."""
    paths = [folder.resolve() for folder in folders]
    names = [path.name for path in {*paths}]
    return [path.name if names.count(path.name) == 1 else str(path) for path in paths]


def spread(stored: Sequence[int]) -> list[int]:
    """At most `STEPS` of the stored steps at equal distances, the first and the last included."""
    last = len(stored) - 1
    return [stored[place] for place in sorted({round(i * last / (STEPS - 1)) for i in range(STEPS)})] if stored else []


@cache
def _library() -> str:
    return _packed(_plotly().encode())


def _packed(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


def _plotly() -> str:
    """Plotly's JavaScript, which its Python package contains; importing that package is not needed, and slow."""
    file = importlib.metadata.distribution("plotly").locate_file("plotly/package_data/plotly.min.js")
    return Path(str(file)).read_text(encoding="utf-8")


def _file(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")
