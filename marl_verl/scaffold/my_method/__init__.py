"""A plugin of marl-verl: one small example of each kind of part, which together are a method and a task for it."""

__version__ = "0.1.0"
