"""Tasks: the task set interface, task files, public data sets, and rows of verl."""

from marl_verl.tasks.base import DrawnTasks, Split, Task, TaskSet, distinct, held_out, quick, read_rows
from marl_verl.tasks.public import Fields, LeftOut, PublicSet, PublicTasks, clipped, task_id, verdict

__all__ = ["DrawnTasks", "Fields", "LeftOut", "PublicSet", "PublicTasks", "Split", "Task", "TaskSet", "clipped"]
__all__ += ["distinct", "held_out", "quick", "read_rows", "task_id", "verdict"]
