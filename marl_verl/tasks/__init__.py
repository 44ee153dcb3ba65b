"""Tasks: the task set interface, task files, public data sets, and rows of verl."""

from marl_verl.tasks.base import Split, Task, TaskSet, distinct, held_out, quick
from marl_verl.tasks.fields import Fields
from marl_verl.tasks.public import LeftOut, PublicSet, PublicTasks, task_id
from marl_verl.tasks.task_files import read_rows, read_tasks, write_tasks
from marl_verl.tasks.texts import clipped, tagged, verdict

__all__ = [
    "Fields",
    "LeftOut",
    "PublicSet",
    "PublicTasks",
    "Split",
    "Task",
    "TaskSet",
    "clipped",
    "distinct",
    "held_out",
    "quick",
    "read_rows",
    "read_tasks",
    "tagged",
    "task_id",
    "verdict",
    "write_tasks",
]
