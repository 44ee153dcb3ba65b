"""Work in this process: its output, its errors, Ctrl-C, and a debugger on a terminal."""

import asyncio
import json
import logging
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from marl_verl_local import run_here

from marl_verl import RunError
from marl_verl.events import emit
from marl_verl.run.progress import Display

ROOT = Path(__file__).parents[1]


def run(work: str, folder: Path, progress: Any = False) -> None:
    run_here(f"tests.embedded_work:{work}", folder, folder / "train.log", False, Display.of(progress))


def test_output_goes_where_it_belongs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = list[dict[str, Any]]()
    logging.disable(logging.NOTSET)  # whatever other tests have left
    for name in ("verl", "verl.some.module", "marl"):
        logging.getLogger(name).disabled = False
    handlers = logging.getLogger("verl").handlers
    handlers.append(logging.StreamHandler())  # as of a module that was imported before
    for _ in range(2):  # a notebook trains again
        run("steps", tmp_path, events.append)
    handlers.pop().emit(logging.makeLogRecord({"msg": "after the runs"}))
    output = capsys.readouterr()
    assert (output.out, output.err) == (2 * "printed in step 1\nprinted in step 2\n", "after the runs\n")
    log = (tmp_path / "train.log").read_text()
    assert (log.count("to standard error\n"), log.count("logged in step 2\n")) == (4, 2)
    assert log.count("logged by a new module in step 2\n") == 2
    assert [event["event"] for event in events] == 2 * ["phase", "started", "step", "step"]
    timing = json.loads((tmp_path / "timing.json").read_text())
    assert (timing["backend"], list(timing["phases"])) == ("local", ["loading verl", "policies started"])
    assert timing["seconds_to_first_step"] < 60
    emit("step")  # goes nowhere


@pytest.mark.parametrize(
    ("work", "message", "mistake"), [("mistake", "a mistake of", True), ("bug", "policy 'a': ValueError: a", False)]
)
def test_an_error_is_a_line_and_its_traceback_is_logged(tmp_path: Path, work: str, message: str, mistake: bool) -> None:
    with pytest.raises(RunError, match=f"^{message}.* \\(log: ") as error:
        run(work, tmp_path)
    assert error.value.mistake == mistake
    assert f"in {work}\n" in (tmp_path / "train.log").read_text()


def test_an_error_of_a_callback_ends_the_work(tmp_path: Path) -> None:
    def report(event: dict[str, Any]) -> None:
        if event["event"] == "started":
            raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        run("steps", tmp_path, report)
    assert "printed" not in (tmp_path / "train.log").read_text()


def test_the_environment_is_as_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = dict(os.environ)
    run("environment", tmp_path)
    assert capsys.readouterr().out == "cpu True\n"
    assert dict(os.environ) == before


def test_ctrl_c_in_a_notebook_ends_the_work_in_its_thread(tmp_path: Path) -> None:
    """An event loop runs in this thread, which gets the signal."""

    def report(event: dict[str, Any]) -> None:
        if event["event"] == "doing":
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()

    async def cell() -> None:
        with pytest.raises(KeyboardInterrupt, match=r"interrupted\. No checkpoint was saved yet"):
            run("hang", tmp_path, report)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # that of asyncio cancels the cell instead
    try:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(cell())
        loop.close()
    finally:
        signal.signal(signal.SIGINT, handler)
    assert not [thread for thread in threading.enumerate() if thread.name == "marl-verl"]


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *command: str) -> None:
        self._ours, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200", "PYTHONBREAKPOINT": ""}
        streams: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, **streams)
        os.close(theirs)
        self.shown, self._read, self._from = "", threading.Condition(), 0
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        try:
            while part := os.read(self._ours, 1 << 16):
                with self._read:
                    self.shown += part.decode(errors="replace")
                    self._read.notify()
        except OSError:  # the process has ended
            pass

    def expect(self, text: str) -> str:
        """Wait until a text is shown, after the last one. Returns what is shown up to it."""
        with self._read:
            assert self._read.wait_for(lambda: text in self.shown[self._from :], timeout=120), self.shown
            begin, self._from = self._from, self.shown.index(text, self._from) + len(text)
            return self.shown[begin : self._from]

    def type(self, line: str) -> None:
        os.write(self._ours, f"{line}\n".encode())

    def end(self) -> int:
        try:
            return self.process.wait(timeout=60)
        finally:
            self.process.kill()
            os.close(self._ours)


PARTS = """
import sys
from dataclasses import dataclass

from marl_verl import Workflow, hookimpl
from marl_verl.algo.advantage import Advantage
from marl_verl.algo.algorithms import Algorithm
from marl_verl.algo.sampling import Independent

STOPPED = set()

@hookimpl
def marl_step_finished(step):
    import psutil, ray
    listening = [c.laddr for c in psutil.Process().net_connections("inet") if c.status == "LISTEN"]
    children = [c.cmdline() for c in psutil.Process().children() if "algo.sampling.scoring" not in str(c.cmdline())]
    print("OPENED", listening, children, ray.is_initialized(), "vllm" in sys.modules)

def stop(name):
    if name not in STOPPED:
        STOPPED.add(name)
        breakpoint()
    return name

class SendAndAsk(Workflow):
    async def run(self, task, team):
        digits, index = task.prompt.split(" index ")
        sent = await team["holder"].act(digits)
        if sent.text:  # not in a rehearsal
            stop("workflow")
            await team.call(stop, "call")
        answer = await team["asker"].act(f"message {sent.text} index {index}")
        return answer.text

def reward(task, turn, episode):
    stop("reward")
    return 0.5

class Sampler(Independent):
    async def sample(self, context):
        stop("sampler")
        return await super().sample(context)

@dataclass(frozen=True)
class Estimator(Advantage):
    def compute(self, table, reward):
        stop("estimator")
        return super().compute(table, reward)

@hookimpl
def marl_register(registry):
    registry.sampler("stops", Sampler)
    registry.algorithm("stops", Algorithm(sampler="stops", advantage=Estimator()))
    registry.workflow("stops", SendAndAsk)
    registry.reward("stops", reward)
"""


@pytest.mark.slow
def test_a_run_stops_in_all_code_of_a_user_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(PARTS)
    recipe = ROOT / "recipes" / "quickstart" / "inventory.yaml"
    options = ["data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4", "marl.task.test_size=4"]
    options += ["marl.rollout.act_seconds=5", "marl.rollout.call_seconds=0.5", "marl.rollout.episode_seconds=5"]
    options += [f"marl.{name}=stops" for name in ("workflow.name", "algorithm.name", "agents.holder.reward")]
    options += [f"marl.run.dir={tmp_path}/runs"]
    options += [f"marl.policies.{name}.tiny={{steps: 30, batch_size: 16}}" for name in ("holder", "asker")]
    options += ["trainer.total_training_steps=1", "--plugin", f"{tmp_path}/parts.py", "--local"]
    terminal = Terminal(sys.executable, "-m", "marl_verl.cli.main", "train", str(recipe), *options)
    for name in ("workflow", "call", "reward", "sampler", "estimator"):  # the first three in a validation
        terminal.expect("-> return name")  # the last prompt is still shown: it is no sign of this one
        terminal.expect("(Pdb) ")
        time.sleep(1)
        terminal.type("p 'here', name")
        terminal.expect(f"('here', '{name}')")
        terminal.type("c")
    terminal.expect("OPENED [] [] False False")  # nothing listens, only scores have a process, no Ray, no vLLM
    terminal.expect("next, try: ")
    assert terminal.end() == 0
    assert json.loads((tmp_path / "runs" / "inventory-1" / "summary.json").read_text())["steps"] == 1
    metrics = [json.loads(line) for line in (tmp_path / "runs" / "inventory-1" / "metrics.jsonl").open()]
    assert [line["train/failed_episodes"] for line in metrics if "train/failed_episodes" in line] == [0.0]


@pytest.mark.parametrize("line", ["q", "\x04"])
def test_quitting_the_debugger_ends_the_run(tmp_path: Path, line: str) -> None:
    terminal = Terminal(sys.executable, "-m", "tests.embedded_work", "stop_in_call", str(tmp_path))
    terminal.expect("(Pdb) ")
    terminal.type(line)
    terminal.expect("interrupted. No checkpoint was saved yet")
    assert terminal.end() == 130


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_at_once(tmp_path: Path, number: int) -> None:
    terminal = Terminal(sys.executable, "-m", "tests.embedded_work", "hang", str(tmp_path))
    terminal.expect("hanging")
    time.sleep(0.5)
    begun = time.monotonic()
    terminal.process.send_signal(number)
    terminal.expect("interrupted. No checkpoint was saved yet: start a new run")
    assert terminal.end() == 130
    assert time.monotonic() - begun < 5
    assert "Traceback" not in terminal.shown
