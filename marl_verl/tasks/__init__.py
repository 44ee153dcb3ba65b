"""Tasks: the task set interface, task files, and the two bundled task sets."""

from marl_verl.tasks.base import Split, Task, TaskSet, distinct, held_out
from marl_verl.tasks.task_files import read_rows, read_tasks, write_tasks

__all__ = ["Split", "Task", "TaskSet", "distinct", "held_out", "read_rows", "read_tasks", "write_tasks"]
