"""Start the work of a run directory on its backend: in a process of its own, or in this one."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from marl_verl.config.backend import is_local
from marl_verl.config.hardware import on_gpu
from marl_verl.config.stored import team_of
from marl_verl.run import embedded, supervisor
from marl_verl.run.progress import Display


def start(
    work: str,
    folder: Path,
    config: DictConfig,
    display: Display,
    begun: float,
    log: Path | None = None,
    lock: int | None = None,
) -> None:
    """Do the work and show its progress. RunError and KeyboardInterrupt as `TrainerProcess.run`.

    Args:
        work: "module:function", which takes the folder; the module is also a program that does so.
        config: the resolved config of the folder.
        begun: when the command began.
        log: the file for the output; default: train.log in the folder.
        lock: the descriptor of the run's `locked`.
    """
    policies, gpu, log = list(team_of(config).policies), on_gpu(config), log or folder / "train.log"
    if is_local(config):
        embedded.run(work, folder, policies, log, gpu, display, begun)
        return
    module, private = work.partition(":")[0], bool(config.marl.run.private_network)
    supervisor.TrainerProcess(folder, policies, module, log, lock, gpu, private).run(display, begun)
