"""Tasks: the task set interface, task files, public data sets, and rows of verl."""

from marl_verl.tasks.base import DrawnTasks, TaskSet, distinct, held_out, quick
from marl_verl.tasks.fields import Fields, clipped, verdict
from marl_verl.tasks.public import LeftOut, PublicSet, PublicTasks, task_id
from marl_verl.tasks.task import Split, Task
from marl_verl.tasks.task_files import read_rows

__all__ = ["DrawnTasks", "Fields", "LeftOut", "PublicSet", "PublicTasks", "Split", "Task", "TaskSet", "clipped"]
__all__ += ["distinct", "held_out", "quick", "read_rows", "task_id", "verdict"]
