"""Tasks: the task set interface and task files."""

from marl_verl.tasks.base import DrawnTasks, Split, Task, TaskSet, distinct, held_out, quick, read_rows

__all__ = ["DrawnTasks", "Split", "Task", "TaskSet", "distinct", "held_out", "quick", "read_rows"]
