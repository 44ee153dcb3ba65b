"""Tasks of public data sets, for task sets of other distributions."""

from typing import TYPE_CHECKING

from marl_verl import lazy

if TYPE_CHECKING:
    from marl_verl_datasets.public import Fields, LeftOut, PublicSet, PublicTasks, clipped, task_id, verdict

__all__ = ["Fields", "LeftOut", "PublicSet", "PublicTasks", "clipped", "task_id", "verdict"]

__getattr__ = lazy(__name__)  # listing plugins imports the package
