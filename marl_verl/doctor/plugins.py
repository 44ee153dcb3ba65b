"""Every plugin: whether it can be loaded, and names that several of them register. Loaded in a process of its own."""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from marl_verl.doctor import Finding, error, ok, warning
from marl_verl.doctor.process import python
from marl_verl.plugins import GROUP, VARIABLE

SECONDS = 60.0

LOADING = """
import json, os
from marl_verl.errors import MarlError
from marl_verl.plugins import KINDS, VARIABLE, discover
wrong, records, twice = "", [], []
try:
    found = discover(os.environ.get(VARIABLE))
    records = found.describe()
except MarlError as error:
    wrong = str(error)
for kind in KINDS if records else ():
    for name in found.names(kind):
        try:
            found.entry(kind, name)
        except MarlError as error:
            twice.append(str(error))
print("\\n" + json.dumps([wrong, records, twice]))
"""


def check(note: Callable[[str], None]) -> Iterator[Finding]:
    """A finding for each plugin, and for each name of several distributions."""
    points = sorted(importlib.metadata.entry_points(group=GROUP), key=lambda point: point.name)
    limit = os.environ.get(VARIABLE)
    if limit is not None:
        left = sorted({point.name for point in points} - {name.strip() for name in limit.split(",")})
        said = f"{VARIABLE}='{limit}' leaves out {', '.join(left) or 'nothing'}"
        yield ok("plugins", said) if not left else warning("plugins", said, f"unset {VARIABLE}   # to load them all")
    note("loading plugins ...")
    done = python(LOADING, seconds=SECONDS)
    wrong, records, twice = json.loads(done.out.splitlines()[-1]) if not done.wrong else (done.wrong, [], [])
    if wrong:
        said = f"the process that loads the plugins failed: {wrong}" if done.wrong else wrong
        yield error("plugins", said, f"export {VARIABLE}=...   # name the plugins to load")
    for record in records:
        if record["enabled"] and record["plugin"] != "builtin":
            yield _finding(record, [point.name for point in points])
    for said in twice:
        yield warning("plugins", said, "pip uninstall one of the two, or write the longer name in a recipe")
    for name, times in Counter(point.name for point in points).items():
        if times > 1:
            owners = " and ".join(sorted(_owner(point) for point in points if point.name == name))
            said = f"{owners} both call their plugin '{name}': {VARIABLE} cannot name one of them"
            yield warning(f"plugin {name}", said, "ask their authors to rename one entry point")


def _finding(record: dict[str, Any], names: list[str]) -> Finding:
    """A plugin, and what to do about it where it is broken."""
    name, distribution = record["plugin"], record["distribution"]
    if not record["error"]:
        return ok(f"plugin {name}", f"{distribution} {record['version']}")
    limit = f'export {VARIABLE}="{",".join(sorted({*names} - {name}))}"   # goes on without it'
    return warning(f"plugin {name}", record["error"], f"pip install --upgrade {distribution}, or {limit}")


def _owner(point: importlib.metadata.EntryPoint) -> str:
    return str(point.dist.metadata["Name"]) if point.dist is not None else "unknown"
