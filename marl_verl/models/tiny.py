"""Tiny models by description: made on the spot, and kept in a cache under a name that holds a hash of their content."""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen, TimeoutExpired
from typing import Annotated, Any

from annotated_types import Interval

from marl_verl import options, plugins
from marl_verl.errors import MarlError
from marl_verl.models import Progress, Shape

RECIPE = 1  # rises with any change of tokenizers, factory or warm-up that changes the weights
SAMPLE = 64  # demonstrations that enter the content hash: a task that teaches something else gets other models


@dataclass(frozen=True)
class TinyModel(Shape):
    """A tiny model: the policy of `agents` on a task set, after a warm-up (`marl.policies.<name>.tiny` in config).

    Attributes:
        task: registered name of the task set that teaches.
        agents: whose demonstrations to learn; several for a policy that they share.
        task_options: options of the task set.
        seed: of the first weights and of the demonstrations.
        steps: warm-up updates.
        good: share of right demonstrations, 0 to 1; the rest are careless.
        batch_size: demonstrations an update.
        learning_rate: highest of the warm-up.
    """

    task: str
    agents: Sequence[str]
    task_options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    steps: options.NonNegative = 200
    good: Annotated[float, Interval(ge=0, le=1)] = 0.35
    batch_size: options.Positive = 64
    learning_rate: float = 3e-3

    def __post_init__(self) -> None:
        object.__setattr__(self, "agents", list(self.agents))
        object.__setattr__(self, "task_options", dict(self.task_options))
        if not self.agents:
            raise MarlError("a tiny model needs at least one agent to learn from")

    def to_json(self) -> str:
        """The description as one line, the same for equal ones."""
        return json.dumps(asdict(self), sort_keys=True)


def default_cache() -> Path:
    """`$MARL_VERL_CACHE`, or `~/.cache/marl-verl`."""
    return Path(os.environ.get("MARL_VERL_CACHE") or Path.home() / ".cache" / "marl-verl")


def ensure(spec: TinyModel, cache_dir: Path | None = None, progress: Progress | None = None) -> Path:
    """The folder of a model, made in this process if the cache lacks it; it loads with plain transformers and vLLM.

    The folder appears whole or not at all: it is written under another name and then renamed.
    """
    folder = folder_of(spec, cache_dir)
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = folder.with_name(f".{folder.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            _make(spec, unfinished, progress)
            unfinished.rename(folder)
        except OSError:
            if not folder.exists():  # else another process was faster: its model is the same
                raise
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    if progress is not None:
        progress(1.0)
    return folder


def ensure_all(
    specs: Sequence[TinyModel], cache_dir: Path | None = None, progress: Progress | None = None
) -> list[Path]:
    """`ensure` for several models at once, each in a process of one thread; none is left when this returns or raises.

    Equal ones are made once. `progress` is called from several threads, one at a time. MarlError for a description that
    is wrong (an agent or task that does not exist, ...); RuntimeError, with what it wrote last, for a worker that died.
    """
    cache = cache_dir or default_cache()
    folders = [folder_of(spec, cache) for spec in specs]
    missing = {folder: spec for folder, spec in zip(folders, specs, strict=True) if not folder.exists()}
    total = sum(spec.steps + 1 for spec in missing.values())
    done = dict.fromkeys(missing, 0.0)
    lock = threading.Lock()

    def report(folder: Path, fraction: float) -> None:
        with lock:
            done[folder] = fraction * (missing[folder].steps + 1)
            if progress is not None:
                progress(sum(done.values()) / total)

    if missing:
        workers = _Workers()
        with ThreadPoolExecutor(max_workers=min(len(missing), os.cpu_count() or 1)) as pool:
            try:
                jobs = [
                    pool.submit(workers.make, spec, cache, functools.partial(report, folder))
                    for folder, spec in missing.items()
                ]
                for job in as_completed(jobs):
                    job.result()
            finally:  # before the pool waits for its threads, which wait for the processes
                pool.shutdown(wait=False, cancel_futures=True)
                workers.stop()
    if progress is not None:
        progress(1.0)
    return folders


def folder_of(spec: TinyModel, cache_dir: Path | None = None) -> Path:
    """Where the cache has, or would have, the model. Its name ends with the hash of all that the weights depend on."""
    teacher = _teacher(spec)
    described = asdict(spec)
    if spec.family == "qwen3":  # the only one when the first caches were filled: their names stay right
        del described["family"]
    content = {
        "recipe": RECIPE,
        "spec": described,
        "vocabulary": teacher.vocabulary(),
        "demonstrations": [teacher.demonstrations(agent, SAMPLE, spec.seed, spec.good) for agent in spec.agents],
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", "-".join([spec.task, *spec.agents]))
    return (cache_dir or default_cache()) / "tiny" / f"{name}-{digest}"


def _teacher(spec: TinyModel) -> Any:
    """The task set, with all words of observations and answers, and (observation, answer) pairs for each agent."""
    task_set = plugins.load().get("tasks", spec.task)
    for needed in ("vocabulary", "demonstrations"):
        if not hasattr(task_set, needed):
            raise MarlError(f"task '{spec.task}' has no {needed}() and so cannot warm up a tiny model")
    return options.build(task_set, spec.task_options, "marl.task.options")


def _make(spec: TinyModel, folder: Path, progress: Progress | None) -> None:
    """Make the model and write it with its tokenizer into `folder`."""
    from marl_verl.models import factory  # torch: seconds, not needed where the cache has the model

    teacher = _teacher(spec)
    make = {"qwen3": factory.make_tokenizer, "llama": factory.make_bpe_tokenizer}[spec.family]
    words = make(teacher.vocabulary(), spec.context)
    model = factory.make_model(spec, words, spec.seed)
    count = spec.steps * spec.batch_size
    each = -(-count // len(spec.agents))
    crowds = [teacher.demonstrations(agent, each, spec.seed, spec.good) for agent in spec.agents]
    mixed = [pair for gather_all in zip(*crowds, strict=True) for pair in gather_all][:count]
    factory.warm_up(model, words, mixed, spec.batch_size, spec.learning_rate, progress)
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    (folder / "tiny.json").write_text(spec.to_json() + "\n")


class _Workers:
    """The processes at work. After `stop` none is alive and none can be started."""

    def __init__(self) -> None:
        self._processes: list[Popen[str]] = []
        self._lock = threading.Lock()
        self._stopped = False

    def make(self, spec: TinyModel, cache_dir: Path, report: Progress) -> None:
        """Make one model in a process of one thread, and pass on the fractions that it prints."""
        with self._lock:
            if self._stopped:
                raise RuntimeError("the work was stopped")
            command = [sys.executable, "-m", "marl_verl.models.tiny", "--cache", str(cache_dir), spec.to_json()]
            env = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
            # a group of its own: Ctrl-C reaches only the caller, who calls `stop`
            worker = Popen(command, env=env, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, text=True, process_group=0)
            self._processes.append(worker)
        message: list[str] = []
        assert worker.stdout is not None
        with worker.stdout:
            for line in worker.stdout:
                if line.startswith("fraction "):
                    report(float(line.split()[1]))
                else:
                    message.append(line.rstrip())
        code = worker.wait()
        if code == 2 and message:
            raise MarlError(message[-1])
        if code != 0:
            last = "\n".join(message[-20:])
            raise RuntimeError(f"making the tiny model of {', '.join(spec.agents)} failed ({code}): {last}")

    def stop(self) -> None:
        """End the processes: first politely, so that they remove what they have half written."""
        with self._lock:
            self._stopped = True
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(timeout=5)
            except TimeoutExpired:
                process.kill()
                process.wait()


def main() -> int:
    """The worker: one description, one model; prints `fraction 0.25` lines. Ends when nobody reads them any more."""
    parser = argparse.ArgumentParser(prog="python -m marl_verl.models.tiny", description=main.__doc__)
    parser.add_argument("spec", type=json.loads, help="TinyModel.to_json()")
    parser.add_argument("--cache", type=Path)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what is half written is removed
    try:
        spec = options.build(TinyModel, given.spec, "tiny")
        ensure(spec, given.cache, lambda done: print(f"fraction {done:.4f}", flush=True))
    except MarlError as error:
        print(error, flush=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
