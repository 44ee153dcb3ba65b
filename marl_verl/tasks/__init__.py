"""Tasks: what a task set is, how files of tasks are read, and the two sets that come with the package."""

from marl_verl.tasks.base import Split, Task, TaskSet, distinct, held_out
from marl_verl.tasks.files import read_tasks, write_tasks

__all__ = ["Split", "Task", "TaskSet", "distinct", "held_out", "read_tasks", "write_tasks"]
