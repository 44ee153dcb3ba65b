"""Plugins: hooks, the registry of parts by name and distribution, and the built-in parts."""

from marl_verl.plugins.loading import assemble, discover, load
from marl_verl.plugins.loading import use_files as use_files
from marl_verl.plugins.lookup import Plugins
from marl_verl.plugins.registry import Registry, hookimpl

__all__ = ["Plugins", "Registry", "assemble", "discover", "hookimpl", "load"]
