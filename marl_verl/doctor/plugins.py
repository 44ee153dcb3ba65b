"""Every plugin, each by itself and in a process of its own, and then together: one that is broken hides no other."""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator

from marl_verl.doctor.finding import Finding, error, ok, warning
from marl_verl.doctor.process import python
from marl_verl.plugins import GROUP, VARIABLE

SECONDS = 60.0

ALONE = """
import sys, json
from marl_verl.errors import MarlError
from marl_verl.plugins import discover
try:
    found = discover(sys.argv[1])
    (source,) = [source for source in found.loaded if source.plugin == sys.argv[1]][:1]
    print("\\n" + json.dumps(["", f"{source.distribution} {source.version}"]))
except MarlError as error:
    print("\\n" + json.dumps([str(error), ""]))
"""
TOGETHER = """
import sys, json
from marl_verl.errors import MarlError
from marl_verl.plugins import discover
accepted, said = [], []
for name in sys.argv[1:]:
    try:
        discover(",".join([*accepted, name]))
        accepted.append(name)
    except MarlError as error:
        said.append(str(error))
print("\\n" + json.dumps(said))
"""


def check(note: Callable[[str], None]) -> Iterator[Finding]:
    """A finding for each plugin, and for each that does not go with the others."""
    points = sorted(importlib.metadata.entry_points(group=GROUP), key=lambda point: point.name)
    limit = os.environ.get(VARIABLE)
    names = sorted({point.name for point in points})
    if limit is not None:
        names = sorted({name.strip() for name in limit.split(",")} - {""})
        left = sorted({point.name for point in points} - set(names))
        said = f"{VARIABLE}='{limit}' leaves out {', '.join(left) or 'nothing'}"
        yield ok("plugins", said) if not left else warning("plugins", said, f"unset {VARIABLE}   # to load them all")
    good = []
    for name in names:
        note(f"loading plugin {name} ...")
        wrong, source = alone(name)
        if wrong:
            yield error(f"plugin {name}", wrong, remedy(name, points))
        else:
            good.append(name)
            yield ok(f"plugin {name}", source)
    for name, times in Counter(point.name for point in points).items():
        if times > 1:
            owners = " and ".join(sorted(_owner(point) for point in points if point.name == name))
            said = f"{owners} both call their plugin '{name}': {VARIABLE} cannot name one of them"
            yield warning(f"plugin {name}", said, "ask their authors to rename one entry point")
    if len(good) > 1:
        note("loading all plugins ...")
        done = python(TOGETHER, *good, seconds=SECONDS)
        for said in [f"together they do not load: {done.wrong}"] if done.wrong else json.loads(_last(done.out)):
            yield error(
                "plugins", said, f"export {VARIABLE}=...   # name the plugins to load, and leave one of the two out"
            )


def alone(name: str) -> tuple[str, str]:
    """(why a plugin cannot be loaded, "" where it can; whose it is)."""
    done = python(ALONE, name, seconds=SECONDS)
    if done.wrong:
        return f"plugin '{name}' ends the process that loads it: {done.wrong}", ""
    wrong, source = json.loads(_last(done.out))
    return wrong, source


def remedy(name: str, points: list[importlib.metadata.EntryPoint]) -> str:
    """What to do about a plugin that does not load."""
    others = sorted({point.name for point in points} - {name})
    owner = next((_owner(point) for point in points if point.name == name), "")
    limit = f'export {VARIABLE}="{",".join(others)}"   # goes on without it'
    return f"pip install --upgrade {owner}, or {limit}" if owner else limit


def _owner(point: importlib.metadata.EntryPoint) -> str:
    return str(point.dist.metadata["Name"]) if point.dist is not None else "unknown"


def _last(printed: str) -> str:
    """The line that the code above printed, whatever a plugin printed before."""
    return printed.splitlines()[-1]
