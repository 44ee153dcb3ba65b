"""Work in a child process: errors are raised, and nothing runs on."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from marl_verl_local.interrupts import reported_unless_interrupted
from marl_verl_local.planning import in_child


def test_a_child_works_while_this_process_does(tmp_path: Path) -> None:
    def work(writing: int) -> int:
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
        os.write(writing, b"runs/x-1")
        return 0

    def meanwhile() -> None:
        subprocess.run([sys.executable, "-c", "pass"], check=True)  # another child that ends
        (tmp_path / "begun").touch()

    assert in_child(work, meanwhile) == "runs/x-1"


def test_an_interrupt_ends_the_child_too(tmp_path: Path) -> None:
    def work(writing: int) -> int:
        try:
            time.sleep(60)
        except KeyboardInterrupt:  # it tidies up
            (tmp_path / "ended").touch()
        return 130

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        with pytest.raises(SystemExit) as ended:
            in_child(work, lambda: time.sleep(30))
    finally:
        signal.signal(signal.SIGINT, handler)
    assert ended.value.code == 130
    assert (tmp_path / "ended").exists()


@pytest.mark.parametrize(("error", "reports"), [(KeyboardInterrupt, 0), (SystemExit, 1)])
def test_a_task_that_ctrl_c_ends_is_not_reported(
    error: type[BaseException], reports: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def ends() -> None:
        raise error

    async def plays() -> None:
        asyncio.get_running_loop().set_exception_handler(reported_unless_interrupted)
        await asyncio.wait([asyncio.create_task(ends())])

    with pytest.raises(error):
        asyncio.run(plays())
    gc.collect()
    assert len(caplog.records) == reports
