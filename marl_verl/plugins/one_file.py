"""One-file plugins: named in a recipe or on the command line, and loaded from a copy in every process.

The process that starts a run puts their contents into the environment variable MARL_VERL_PLUGIN_FILES (`activate`),
which child processes inherit and Ray passes to the nodes of a cluster. The run directory has copies in `plugins/`,
which a resumed run, an evaluation, a replay and `explain` load (`files_of_run`).
"""

import base64
import hashlib
import json
import linecache
import os
import re
import sys
import types
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from marl_verl.errors import MarlError, check_file
from marl_verl.files import check_run_directory
from marl_verl.plugins.registry import Source

FILES_VARIABLE = "MARL_VERL_PLUGIN_FILES"
COPIES = "plugins"  # folder of a run directory with the copies
PACKAGE = "marl_verl_file_plugins"  # parent package of the modules loaded from files
REWARDS = "reward/"  # beginning of the names of reward files (`marl.task.reward`), which need no hook
LIMIT = 64 * 1024  # maximum bytes of the variable: Linux allows 128 KiB, and Ray passes it on a command line

_loaded: dict[str, str] = {}  # module -> path of its file


@dataclass(frozen=True)
class PluginFile:
    """A plugin file: its name in `plugins/` of a run (the distribution of its parts), its path and its text."""

    name: str
    path: str
    text: str

    @property
    def source(self) -> Source:
        content = hashlib.sha256(self.text.encode()).hexdigest()
        return Source(Path(self.name).stem, self.name, content[:12], self.path, content)


def read_files(paths: Iterable[Path]) -> list[PluginFile]:
    """Read plugin files, each once. MarlError: no such file (with the nearest), or two of one name."""
    named: dict[str, Path] = {}
    for path in (path.expanduser().resolve() for path in paths):
        if named.setdefault(path.name, path) != path:
            raise MarlError(f"plugin files '{named[path.name]}' and '{path}' have the same name: rename one")
    return [read_file(name, path) for name, path in named.items()]


def read_file(name: str, path: Path) -> PluginFile:
    check_file("plugin file", path, "*.py", f"install it with `pip install -e {path}`, or give a file in it")
    return PluginFile(name, str(path), path.read_text("utf-8-sig"))


def files_of_run(run: Path, files: Sequence[Path] = ()) -> list[PluginFile]:
    """The copies in a run directory, and further files. MarlError as `read_files`, or for a changed copy."""
    check_run_directory(run)
    folder = run / COPIES
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*.py"))}
    copies = {name: read_file(name, path) for name, path in paths.items()}
    for file in read_files(files):
        copy = copies.setdefault(file.name, file)
        if copy.text != file.text:
            uses = f"'{copy.path}', which the run uses"
            raise MarlError(f"plugin file '{file.path}' differs from {uses}: leave --plugin out, or start a new run")
    return list(copies.values())


def copy_files(files: Iterable[PluginFile], run: Path) -> None:
    for file in files:
        copy = run / COPIES / file.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.text.encode())


def activate(files: Sequence[PluginFile]) -> bool:
    """Use these files in this process and its children. Returns whether they changed. MarlError if too large."""
    packed = zlib.compress(json.dumps([asdict(file) for file in files]).encode(), 9)
    value = base64.b64encode(packed).decode() if files else ""
    if len(value) > LIMIT:
        message = f"the plugin files take {len(value):,} bytes packed, but the limit is {LIMIT:,}"
        raise MarlError(f"{message}. Make a package of them.")
    if value == os.environ.get(FILES_VARIABLE, ""):
        return False
    os.environ[FILES_VARIABLE] = value
    return True


def files_in_use() -> list[PluginFile]:
    """The plugin files of this process."""
    packed = os.environ.get(FILES_VARIABLE)
    return [PluginFile(**file) for file in json.loads(zlib.decompress(base64.b64decode(packed)))] if packed else []


def modules_of(path: str) -> list[str]:
    """Names of the modules that were loaded from a plugin file."""
    return [name for name, loaded in _loaded.items() if loaded == path]


def load_file(file: PluginFile) -> types.ModuleType:
    """Import a plugin file from its text, once per name and content."""
    stem = re.sub(r"[^A-Za-z0-9]+|^(?=[0-9])", "_", file.name.removesuffix(".py"))
    name = f"{PACKAGE}.{stem}_{file.source.version}"
    if name in sys.modules:
        return sys.modules[name]
    import cloudpickle

    package = sys.modules.setdefault(PACKAGE, types.ModuleType(PACKAGE, "Plugin files, one module each."))
    package.__path__ = []
    cloudpickle.register_pickle_by_value(package)  # a process that runs one of their functions has not loaded them
    module = types.ModuleType(name)
    module.__file__ = file.path
    linecache.cache[file.path] = len(file.text), None, file.text.splitlines(keepends=True), file.path  # for tracebacks
    sys.modules[name] = module  # dataclasses, pickle and lazy targets look it up
    try:
        exec(compile(file.text, file.path, "exec"), vars(module))
    except BaseException:  # plugin code may raise anything
        del sys.modules[name]
        raise
    _loaded[name] = file.path
    return module
