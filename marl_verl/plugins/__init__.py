"""Plugins: hooks, the registry of parts by name and distribution, and the built-in parts."""

from marl_verl.plugins.loading import assemble
from marl_verl.plugins.loading import discover as discover
from marl_verl.plugins.loading import load as load
from marl_verl.plugins.loading import use_files as use_files
from marl_verl.plugins.registry import Registry, hookimpl

__all__ = ["Registry", "assemble", "hookimpl"]
