"""Real runs of the real stack, shared by the tests that look at them: a start of Ray and vLLM costs a minute."""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from marl_verl_testing import real
from marl_verl_testing.real import LIMIT, Finished, resume

from marl_verl.threads import in_thread
from tests.e2e import killer
from tests.five import RECIPE
from tests.served import turns
from tests.sites import add_distribution, python_path

__all__ = ["LIMIT", "Finished", "resume"]
ROOT = Path(__file__).resolve().parents[2]
INVENTORY = ROOT / "recipes" / "quickstart" / "inventory.yaml"
MARS2 = ROOT / "recipes" / "mars2" / "cpu.yaml"
long = pytest.mark.long


def train(folder: Path, *overrides: str, recipe: Path = INVENTORY, **variables: str) -> Finished:
    """Run `marl-verl train RECIPE overrides...` on Ray and vLLM, with its run directory at `folder`."""
    return real.train(recipe, folder, "marl.run.backend=verl", *overrides, variables=variables)


def until_interrupted(
    command: list[str], folder: Path, reached: Callable[[], bool], variables: dict[str, str]
) -> Finished:
    """Run a command until its run has `reached` something, and press Ctrl-C. Until then, nothing of the run listens on
    the network. `left` is what the run leaves when the command has ended."""
    before, output = left_behind(), folder.with_suffix(".log")
    until, environment = time.monotonic() + LIMIT, {**os.environ, **variables}
    with output.open("wb") as log:
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        process = subprocess.Popen(command, cwd=folder.parent, env=environment, **streams)
    try:
        while not reached():
            assert process.poll() is None, output.read_text() + log_of(folder)
            assert time.monotonic() < until, output.read_text() + log_of(folder)
            time.sleep(0.05)
        assert sum("forked_workers.py" in command for command in left_running()) > 5  # each waits for a fork
        assert not exposed()
        process.send_signal(signal.SIGINT)
        code = process.wait(timeout=120)
    finally:
        process.kill()
    return Finished(folder, code, output.read_text(), [*left_running(), *(left_behind() - before)])


def log_of(folder: Path) -> str:
    """The end of a run's log, for an assertion's message."""
    log = folder / "train.log"
    return log.read_text(errors="replace")[-3000:] if log.is_file() else ""


def left_running(place: Path | None = None) -> list[str]:
    """Command lines of processes of runs, Ray and vLLM; with `place`, of those whose PYTHONPATH has a folder in it."""
    commands = []
    for process in psutil.process_iter():
        try:
            ours = process.name().startswith(("ray::", "VLLM::")) or "MARL_VERL_RUN" in process.environ()
            ours = ours and (place is None or str(place) in process.environ().get("PYTHONPATH", ""))
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                commands.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return commands


def exposed() -> list[str]:
    """The processes of runs that listen on another address than loopback, with the address."""
    listening = []
    for process in psutil.process_iter():
        try:
            if "MARL_VERL_RUN" in process.environ():
                sockets = process.net_connections("inet")
                addresses = {socket.laddr.ip for socket in sockets if socket.status == psutil.CONN_LISTEN}
                addresses -= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
                listening += [f"{process.name()} listens on {address}" for address in addresses]
        except psutil.Error:
            continue
    return listening


def left_behind() -> set[str]:
    """Names in shared memory and of sockets and files that runs put into the temporary folder."""
    temporary = {path.name for path in Path(tempfile.gettempdir()).iterdir() if path.name.startswith(("marl-", "rl-"))}
    return temporary | {path.name for path in Path("/dev/shm").iterdir()}


FOUR_STEPS: dict[str, Any] = {
    **{"trainer.total_training_steps": 4, "trainer.save_freq": 1, "trainer.test_freq": 2, "marl.checkpoint.keep": 3},
    **{"data.train_batch_size": 24, "actor_rollout_ref.actor.ppo_mini_batch_size": 24, "marl.run.seed": 3},
    **{"marl.task.test_size": 40, "trainer.logger": ["tensorboard", "wandb"]},
    # what is sampled depends on scores
    **{"marl.algorithm.options.sampler": "greedy-tree", "marl.sampler.options.candidates": 4},
    "marl.sampler.filter.refill": 1,
    # a teacher reads what was sampled, or its own likeliest tokens
    **{"+marl.policies.big.frozen": True, "+marl.policies.big.tiny.steps": 300, "+marl.policies.big.tiny.hidden": 48},
    **{f"+marl.policies.{name}.teacher.policy": "big" for name in ("sender", "answerer")},
    "+marl.policies.answerer.teacher.form": "reverse-kl",
    **{"+marl.policies.sender.teacher.form": "forward-topk", "+marl.policies.sender.teacher.topk": 8},
    "+marl.policies.sender.teacher.reward": False,
}


def my_team(place: Path) -> None:
    """Copy README's pair, as a user has it, to a folder outside the repository."""
    for name in ("my_team.py", "my_team.yaml"):
        shutil.copy(ROOT / "recipes" / "quickstart" / name, place)


def tracked(run: Finished, metric: str) -> list[tuple[int, float]]:
    """(step, value) of a metric in TensorBoard."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(run.folder / "tensorboard")).Reload()
    return [(event.step, event.value) for event in board.Scalars(metric)]


def recorded(run: Finished) -> dict[str, Any]:
    """All that a run has recorded, without times and memory readings."""
    skipped = ("seconds", "perf/", "mfu")
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    curve = [{key: line[key] for key in line if not any(word in key for word in skipped)} for line in lines]
    files = sorted(path for place in ("journals", "episodes", "rows") for path in (run.folder / place).iterdir())
    return {
        "metrics": curve,
        "files": {f"{path.parent.name}/{path.name}": path.read_bytes() for path in files},
        "checkpoints": sorted(path.name for path in (run.folder / "checkpoints").iterdir()),
    }


def actions(run: Finished, step: int) -> dict[str, tuple[str, Any]]:
    """Row -> the text of its action and how many tokens it has, in a step."""
    return {key: (record["action"]["text"], record["action"].get("tokens")) for key, record in turns(run, step)}


@contextmanager
def foreign_ray() -> Iterator[None]:
    """A Ray session of another program on the default port, which a run must neither use nor end."""
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--num-cpus=1", "--disable-usage-stats"]
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        options = ["--include-dashboard=false", f"--temp-dir={folder}"]
        subprocess.run([*start, *options], check=True, timeout=120, stdout=subprocess.DEVNULL)
        ours = [process for process in psutil.process_iter(["cmdline"]) if folder in str(process.info["cmdline"])]
        try:
            yield
        finally:
            alive = [process.is_running() for process in ours]
            ended = {*ours, *(child for process in ours if process.is_running() for child in process.children())}
            for process in ended:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(ended, timeout=10)
    assert alive.count(True) == len(alive) > 2


class Whole(NamedTuple):
    """A run killed on Ray and vLLM in checkpoint 3, then continued in one process; what its script printed."""

    run: Finished
    script: dict[str, Any]


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, begun: Callable[[], Future[Finished]]) -> Whole:
    """A run of `FOUR_STEPS` by the Python API, beside another Ray session, in a folder that then lacks the recipe."""
    place, before = tmp_path_factory.mktemp("whole"), left_behind()
    my_team(place)
    shutil.copy(Path(__file__).with_name("notebook.py"), place)
    own: dict[str, Any] = {"marl.run.dir": "runs", "marl.run.name": "mine", "marl.run.backend": "verl"}
    command = [sys.executable, "notebook.py", json.dumps({**FOUR_STEPS, **own})]
    site = killer.write_site(tmp_path_factory.mktemp("site"))
    kill = {"PYTHONPATH": str(site), killer.VARIABLE: f"{killer.DRIVER}|writing a checkpoint|3"}
    variables = {**os.environ, "WANDB_MODE": "offline", **kill}

    def script() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=place, env=variables, capture_output=True, text=True, timeout=LIMIT)

    with foreign_ray():
        finished = in_thread("script", script)
        while not finished.done() and not (place / "runs" / "mine" / "checkpoints" / "step_2").exists():
            time.sleep(0.2)
        other = begun()  # from here on, the script works in one process, too
        done = finished.result()
    assert done.returncode == 0, done.stderr
    other.result()
    left = [*left_running(), *(left_behind() - before)]
    return Whole(Finished(place / "runs" / "mine", 0, "", left), json.loads(done.stdout))  # nothing else is printed


@pytest.fixture(scope="session")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Future[Finished]]:
    """Begin the run of `whole` in one process, if it has not begun."""
    place = tmp_path_factory.mktemp("local")
    return functools.cache(lambda: in_thread("local", lambda: pair(place, "local")))


@pytest.fixture(scope="session")
def local(begun: Callable[[], Future[Finished]]) -> Finished:
    return begun().result()


def pair(place: Path, backend: str) -> Finished:
    """A run of `FOUR_STEPS`."""
    my_team(place)
    overrides = [f"{key}={value}" for key, value in {**FOUR_STEPS, "trainer.logger": ["tensorboard"]}.items()]
    done = train(place / "runs" / "run", *overrides, f"marl.run.backend={backend}", recipe=place / "my_team.yaml")
    assert done.code == 0, done.output
    return done


SEARCHED = (
    *("trainer.total_training_steps=4", "trainer.test_freq=4", "data.train_batch_size=16", "marl.task.test_size=12"),
    "actor_rollout_ref.actor.ppo_mini_batch_size=16",
    *("marl.schedule.fill=16", "marl.schedule.batch=8"),  # the paper's
    "marl.policies.flipper.loss=gspo-tis",  # MARS2+'s, the other keeps MARS2's
    "actor_rollout_ref.actor.optim.lr_warmup_steps=0",  # else the first update changes nothing
)


@pytest.fixture(scope="session")
def searching(tmp_path_factory: pytest.TempPathFactory) -> Future[Finished]:
    """Four steps of MARS2's CPU recipe, asynchronous: 16 tasks a step, a tree of 8 nodes each. Begun here, since
    exports leave a core idle."""
    folder = tmp_path_factory.mktemp("mars2") / "run"
    return in_thread("mars2", lambda: train(folder, *SEARCHED, "trainer.save_freq=2", recipe=MARS2))


@pytest.fixture(scope="session")
def searched(searching: Future[Finished]) -> Finished:
    done = searching.result()
    assert done.code == 0, done.output
    return done


@dataclass(frozen=True)
class WithPlugin(Finished):
    """A run whose plugin is a module of tests. `variables`: the environment in which it is installed."""

    variables: dict[str, str] = field(default_factory=dict)


@pytest.fixture(scope="session")
def five(tmp_path_factory: pytest.TempPathFactory) -> WithPlugin:
    """Every kind of policy in one team, and a critic. A command of tests/e2e/isolation.py, with Ctrl-C at its end."""
    site = tmp_path_factory.mktemp("site")
    (site / "five.yaml").write_text(RECIPE)
    folder = tmp_path_factory.mktemp("runs") / "five"
    add_distribution(site, "five", {"five": "tests.five"})
    path = python_path(site, ROOT)
    command = [sys.executable, "-m", "tests.e2e.isolation", str(site / "five.yaml"), str(folder)]
    return WithPlugin(**vars(until_interrupted(command, folder, (folder / "seen.json").is_file, path)), variables=path)
