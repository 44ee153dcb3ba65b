"""What `marl-verl doctor` looks at, one subject a file. Nothing here changes anything.

packages.py   Python, and the versions of what is installed
imports.py    whether torch, vLLM and verl load, each in a process of its own
machine.py    GPUs, memory, disk, shared memory, what dead runs left
plugins.py    every plugin, each in a process of its own
"""

from marl_verl.doctor.finding import Finding

__all__ = ["Finding"]
