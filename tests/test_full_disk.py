"""A full disk: the run ends with its reason, although its log cannot be written, and can be continued."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from marl_verl.events import EVENTS_VARIABLE
from marl_verl.run.run_dir import RunDir

pytestmark = pytest.mark.slow
FILES = ("journals", "metrics", "rows")
CODE = """
import resource, sys
from pathlib import Path
from marl_verl.run.run_dir import RunDir
from marl_verl.trainer.run import main

LIMIT = resource.RLIMIT_FSIZE
unlimited = resource.getrlimit(LIMIT)
# no file may grow: the kernel refuses the write, as it does on a full disk
full = lambda: resource.setrlimit(LIMIT, (0, unlimited[1]))


def step(run, number, files, before=lambda: None):
    write = {
        "journals": lambda: run.lines("journals", number, ["{}"]),
        "metrics": lambda: run.metrics(number, {"x": 1.0}),
        "rows": lambda: run.rows(number, {"step": number}),
    }
    before()
    for name in files:
        write[name]()


def work(folder):
    step(RunDir(folder), 1, ["journals", "metrics", "rows"])
    step(RunDir(folder), 2, [folder.name], full)


for name in sys.argv[2:]:
    (Path(sys.argv[1]) / name).mkdir()
    try:
        assert main(Path(sys.argv[1]) / name, work) == 1
    except OSError:  # of the log, after the reason was sent: the exit code is 1, too
        pass
    resource.setrlimit(LIMIT, unlimited)
"""


def test_a_full_disk_ends_a_run_with_its_reason(tmp_path: Path) -> None:
    variables = {**os.environ, EVENTS_VARIABLE: "1"}
    with (tmp_path / "train.log").open("w") as log:
        command = [sys.executable, "-c", CODE, str(tmp_path), *FILES]
        done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, stderr=log, text=True, timeout=60)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    why = "the disk or a quota is full. Free some space, or lower marl.checkpoint.keep, "
    assert len(events) == len(FILES), (tmp_path / "train.log").read_text()
    for event, name in zip(events, FILES, strict=True):
        assert event["event"] == "error"
        assert why in event["message"]
        assert "\n" not in event["message"]
        run = RunDir(tmp_path / name)
        run.forget_after(1)  # as a resumed run
        assert list(run.stored("journals")) == list(run.stored("rows")) == [1]
        assert (tmp_path / name / "metrics.jsonl").read_text() == '{"step": 1, "x": 1.0}\n'
