"""Plugins: hooks, the registry of parts by name and distribution, and the built-in parts."""

from marl_verl.plugins.loading import GROUP, HOOKS, VARIABLE, assemble, check_same, discover, load, use_files
from marl_verl.plugins.lookup import Plugins, content_of
from marl_verl.plugins.one_file import (
    COPIES,
    PluginFile,
    copy_files,
    file_names,
    files_in_use,
    files_of_run,
    read_files,
)
from marl_verl.plugins.registry import KINDS, Entry, Registry, Source, hookimpl

__all__ = ["KINDS", "Entry", "Plugins", "Registry", "Source", "assemble", "discover", "hookimpl", "load"]
__all__ += ["COPIES", "GROUP", "HOOKS", "VARIABLE", "PluginFile", "check_same", "content_of", "copy_files"]
__all__ += ["file_names", "files_in_use", "files_of_run", "read_files", "use_files"]
