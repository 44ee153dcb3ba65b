"""The content hash of a plugin: what a run stores besides the version, which an author may forget to change."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
from pathlib import Path

from marl_verl.plugins.registry import Source


@functools.cache
def content_of(source: Source) -> str:
    """sha256 over the Python files of the plugin's top-level package or module; "" for one without files."""
    if source.content:
        return source.content
    top = source.target.partition(":")[0].partition(".")[0]
    spec = importlib.util.find_spec(top) if top.isidentifier() else None
    if spec is None:
        return ""
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    files = [(path.relative_to(folder), path) for folder in folders for path in folder.rglob("*.py")]
    if not folders and spec.origin is not None:
        files = [(Path(spec.origin).relative_to(Path(spec.origin).parent), Path(spec.origin))]
    return hash_of({place.as_posix(): path.read_bytes() for place, path in files})


def hash_of(files: dict[str, bytes]) -> str:
    """sha256 of files, place -> content, in the order of their places."""
    found = hashlib.sha256()
    for place, content in sorted(files.items()):
        for each in (place.encode(), content):
            found.update(len(each).to_bytes(8, "big") + each)
    return found.hexdigest()
