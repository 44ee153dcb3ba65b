"""Tiny models from descriptions, created on demand and cached under a name with a hash of their content."""

import contextlib
import gc
import hashlib
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from subprocess import DEVNULL, STDOUT, Popen
from typing import Annotated, Any, Literal

from annotated_types import Interval

from marl_verl import MarlError, options, plugins
from marl_verl.errors import user_error
from marl_verl.options import build
from marl_verl.team import Named

RECIPE = 1  # increment with every change of tokenizers, factory or warm-up that changes weights
VOCABULARY = 512  # at most, for estimates
SAMPLE = 64  # number of demonstrations in the content hash, so that a changed task has a new model
LANES = 8  # vLLM's kernels for CPUs take vectors of eight numbers

Progress = Callable[[float], None]  # called with the fraction done
Width = Annotated[int, Interval(ge=1, le=1 << 14)]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Architecture and sizes of a model. The default has 87 thousand parameters with a vocabulary of 72 words.

    Attributes:
        family: "qwen3", whose tokens are the task's words, or "llama", with byte-pair encoding: the same text has
            other and more token ids, so data.max_prompt_length and max_response_length must be larger.
    """

    hidden: Width = 64  # width of the residual stream, a multiple of 8
    layers: Width = 2  # number of layers
    heads: Width = 2  # number of attention heads
    kv_heads: Width = 2  # number of key and value heads; divides `heads`
    head_dim: Literal[32, 64, 80, 96, 112, 128, 160, 192, 224, 256] = 32  # width of a head, a size that vLLM supports
    mlp: Width = 128  # width of the feed-forward layer, a multiple of 8
    context: Annotated[int, Interval(ge=16, le=1 << 20)] = 256  # longest prompt and answer together, in tokens
    family: Literal["qwen3", "llama"] = "qwen3"

    def __post_init__(self) -> None:
        for name in ("hidden", "mlp"):
            if (size := getattr(self, name)) % LANES:
                near = LANES * max(1, round(size / LANES))
                raise MarlError(f"{name}={size} must be a multiple of {LANES}, e.g. {near}")

    def config(self) -> dict[str, Any]:
        """Its sizes, as in a config.json; the vocabulary is an upper bound."""
        width = {"num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim}
        size = {"hidden_size": self.hidden, "num_hidden_layers": self.layers, "intermediate_size": self.mlp}
        return {**width, **size, "vocab_size": VOCABULARY, "tie_word_embeddings": True}


@dataclass(frozen=True)
class TinyModel(Shape):
    """A tiny model for `agents` on a task set, after a warm-up (`marl.policies.<name>.tiny` in config)."""

    task: str  # registered name of the task set that provides the demonstrations
    agents: Sequence[str]  # agents whose demonstrations to learn; several for a shared policy
    task_options: Mapping[str, Any] = field(default_factory=dict)  # options of the task set
    seed: int = 0  # seed of the initial weights and of the demonstrations
    steps: options.NonNegative = 200  # number of warm-up updates
    good: Annotated[float, Interval(ge=0, le=1)] = 0.35  # share of correct demonstrations; the others are careless
    batch_size: options.Positive = 64  # demonstrations per update
    learning_rate: Annotated[float, Interval(gt=0, le=1)] = 3e-3  # maximum learning rate of the warm-up

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "agents", list(self.agents))
        object.__setattr__(self, "task_options", dict(self.task_options))

    @classmethod
    def describe(
        cls, options: Mapping[str, Any], where: str, task: Named, agents: Sequence[str], seed: int
    ) -> "TinyModel":
        """The model of section `where`. MarlError for an invalid option, or a task set without demonstrations."""
        base = {"task": task.name, "agents": agents, "task_options": task.options, "seed": seed}
        model = build(cls, {**base, **options}, where)
        model.folder()
        return model

    @staticmethod
    def make(models: "Sequence[TinyModel]", progress: Progress) -> list[Path]:
        return ensure_all(models, progress=progress)

    @property
    def label(self) -> str:
        return f"tiny {self.family} model, {self.steps} warm-up steps"

    def folder(self, cache: Path | None = None) -> Path:
        """Where it is in the cache; it need not exist."""
        return (cache or default_cache()) / "tiny" / self.folder_name

    @cached_property
    def folder_name(self) -> str:
        """It ends with a hash of all inputs of the weights."""
        teacher, described = self.teacher(), asdict(self)
        if self.family == "qwen3":  # keeps the names of caches from before the key existed
            del described["family"]
        content: dict[str, Any] = {"recipe": RECIPE, "spec": described, "vocabulary": teacher.vocabulary()}
        content["demonstrations"] = [self.demonstrations(name, SAMPLE) for name in self.agents]
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
        name = re.sub(r"[^A-Za-z0-9.-]+", "-", "-".join([self.task, *self.agents]))
        return f"{name}-{digest}"

    def teacher(self) -> Any:
        """The task set with the demonstrations. MarlError: it has none."""
        task_set = plugins.load().get("tasks", self.task)
        for method in ("demonstrations", "vocabulary"):
            if not hasattr(task_set, method):
                raise MarlError(f"task '{self.task}' has no {method}(), which the warm-up of a tiny model needs")
        return build(task_set, self.task_options, "marl.task.options")

    def demonstrations(self, agent: str, count: int) -> list[tuple[str, str]]:
        """Those of one agent. MarlError where the task set raises: it may not have this agent."""
        with user_error(f"task '{self.task}' has no demonstrations of agent '{agent}'", Exception, line=True):
            return list(self.teacher().demonstrations(agent, count, self.seed, self.good))

    def tokenizer(self) -> Any:
        from marl_verl_tiny import factory

        make = {"qwen3": factory.make_tokenizer, "llama": factory.make_bpe_tokenizer}[self.family]
        return make(self.teacher().vocabulary(), self.context)

    def to_json(self) -> str:
        """The description as one line; equal descriptions give equal lines."""
        return json.dumps(asdict(self), sort_keys=True)


def default_cache() -> Path:
    """`$MARL_VERL_CACHE`, or `~/.cache/marl-verl`."""
    return Path(os.environ.get("MARL_VERL_CACHE") or Path.home() / ".cache" / "marl-verl")


@contextlib.contextmanager
def written(target: Path) -> Iterator[Path]:
    """A path to write, which becomes the folder `target`, completely or not at all, if nobody else has written it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as unfinished:
        yield Path(unfinished) / "model"
        try:
            os.replace(Path(unfinished) / "model", target)
        except OSError:
            if not target.is_dir():
                raise


def ensure(spec: TinyModel, cache_dir: Path | None = None, progress: Progress = lambda fraction: None) -> Path:
    """The folder of a model, created in this process if it is not cached; transformers and vLLM can load it."""
    folder = spec.folder(cache_dir)
    if not folder.exists():
        from marl_verl_tiny import factory  # imports torch, which takes seconds; unused for a cached model

        words = spec.tokenizer()
        model = factory.make_model(spec, words, spec.seed)
        count = spec.steps * spec.batch_size
        share = -(-count // len(spec.agents))
        by_agent = [spec.demonstrations(agent, share) for agent in spec.agents]
        mixed = [pair for pairs in zip(*by_agent, strict=True) for pair in pairs][:count]
        factory.warm_up(model, words, mixed, spec.batch_size, spec.learning_rate, progress)
        with written(folder) as unfinished:
            model.save_pretrained(unfinished)
            words.save_pretrained(unfinished)
            (unfinished / "tiny.json").write_text(spec.to_json() + "\n")
    progress(1.0)
    return folder


def ensure_all(
    specs: Sequence[TinyModel], cache_dir: Path | None = None, progress: Progress = lambda fraction: None
) -> list[Path]:
    """Call `ensure` for several models concurrently, outside this process, which therefore does not import torch.

    Equal models are created once. MarlError: an invalid description. RuntimeError: a process failed, with its output.
    """
    folders = [spec.folder(cache_dir) for spec in specs]
    missing = {folder: spec for folder, spec in zip(folders, specs, strict=True) if not folder.exists()}
    if missing:
        _make_all([*missing.values()], cache_dir or default_cache(), progress)
    progress(1.0)
    return folders


def _make_all(specs: Sequence[TinyModel], cache: Path, progress: Progress) -> None:
    """Make each in a process of its own; all write their progress to one pipe, which ends with the last of them."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done, message, makers = [0.0] * len(specs), list[str](), list[Popen[bytes]]()
    reading, writing = os.pipe()
    try:
        with open(reading, errors="replace") as lines:
            for number, spec in enumerate(specs):
                command = [sys.executable, "-m", "marl_verl_tiny.model", str(cache), str(number), spec.to_json()]
                # in a group of its own: Ctrl-C reaches only this process
                makers.append(Popen(command, env=env, process_group=0, stdin=DEVNULL, stdout=writing, stderr=STDOUT))
            os.close(writing)
            for line in lines:
                if not line.startswith("fraction "):
                    message.append(line.rstrip())
                else:
                    _, place, fraction = line.split()
                    done[int(place)] = float(fraction)
                    progress(sum(done) / len(specs))
        failed = any(maker.wait() for maker in makers)
    finally:
        for maker in makers:  # it removes its incomplete folder
            maker.terminate()
        for maker in makers:
            maker.wait()
    if failed:
        agents = ", ".join(agent for spec in specs for agent in spec.agents)
        raise RuntimeError(f"making the tiny models of {agents} failed: {chr(10).join(message[-20:])}")


def main(cache: str, number: str, spec: str) -> None:
    """Create a tiny model (`TinyModel.to_json`); print progress as `fraction NUMBER 0.25` lines."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that an incomplete folder is removed

    def report(fraction: float) -> None:
        os.write(1, f"fraction {number} {fraction:.4f}\n".encode())  # at once: the processes share the pipe

    ensure(build(TinyModel, json.loads(spec), "tiny"), Path(cache), report)
    gc.freeze()  # else Python looks for garbage for a second before it exits


if __name__ == "__main__":
    main(*sys.argv[1:])
