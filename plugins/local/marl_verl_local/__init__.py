"""The backend `local` of a run: policies are trained and sampled in this process, on the same weights."""

from typing import TYPE_CHECKING

from marl_verl import lazy

if TYPE_CHECKING:
    from marl_verl_local.planning import train
    from marl_verl_local.process import check_settings, load, run_here
    from marl_verl_local.session import opened

__all__ = ["check_settings", "load", "opened", "run_here", "train"]

__getattr__ = lazy(__name__)
