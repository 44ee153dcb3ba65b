"""Runs in separate processes, with the start and the end of the trainer, but without training.

python -m tests.sleeper start FOLDER     is the command line: starts the trainer and shows it
python -m tests.sleeper FOLDER           is the trainer: starts helpers, writes who is there, and waits
"""

import json
import multiprocessing
import os
import subprocess
import sys
import time
from multiprocessing import shared_memory
from pathlib import Path

WHO, NAP = "who.json", "import time; time.sleep(300)"


def work(folder: Path) -> None:
    """Three helpers: one that hides its environment, one that leaves the session, one deeper in the tree."""
    from marl_verl.events import SCRATCH_VARIABLE, emit

    deeper = f"import subprocess, sys, time; print(subprocess.Popen([sys.executable, '-c', {NAP!r}]).pid, flush=True)"
    helpers = [
        subprocess.Popen([sys.executable, "-c", NAP], env={}),
        subprocess.Popen([sys.executable, "-c", NAP], start_new_session=True),
        subprocess.Popen([sys.executable, "-c", f"{deeper}; {NAP}"], stdout=subprocess.PIPE, text=True),
    ]
    assert helpers[2].stdout is not None
    pids = [os.getpid(), *(helper.pid for helper in helpers), int(helpers[2].stdout.readline())]
    memory = shared_memory.SharedMemory(create=True, size=64)
    semaphore = multiprocessing.get_context("spawn").Semaphore()
    shared = [memory.name, f"sem.{semaphore._semlock.name.removeprefix('/')}"]  # type: ignore[attr-defined]
    who = {"pids": pids, "shared": shared, "scratch": os.environ[SCRATCH_VARIABLE]}
    emit("started")
    emit("doing", activity="while sleeping in step 3")
    (folder / ".who").write_text(json.dumps(who))
    (folder / ".who").replace(folder / WHO)
    time.sleep(300)


def main() -> int:
    if sys.argv[1] == "start":
        from marl_verl.cli.main import reported
        from marl_verl.run.progress import Display
        from marl_verl.run.supervisor import TrainerProcess

        process = TrainerProcess(Path(sys.argv[2]), [], module="tests.sleeper")
        return reported(lambda: process.run(Display()) or 0)
    from marl_verl.trainer import run

    return run.main(Path(sys.argv[1]), work)


if __name__ == "__main__":
    sys.exit(main())
