"""The checks of `marl-verl selftest`, in their order: tests of pytest, whose docstrings are their criteria.

Later checks use the models and runs of earlier ones, and make what is missing. What may end its process runs in another
one. `record_property` keeps the figures for the report.
"""

import itertools
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from marl_verl_evaluation.api import evaluate

from marl_verl.api import Run, load_run, train
from marl_verl.config.hardware import has_accelerator
from marl_verl.errors import RunError
from marl_verl.run.progress import Display, Event
from marl_verl.run.run_dir import PACKAGES, machine, packages
from marl_verl.version import __version__

GPUS = "MARL_VERL_SELFTEST_GPUS"
"""Environment variable: the GPUs to use."""
STEPS, TASKS = 4, 20  # steps of the first run, and held-out tasks
DIFFERENCE = 0.02  # between log-probs of sampling and of training, in nats per token
SPREAD = 256  # MiB by which the memory in use while the servers sleep may change
LARGEST, MEAN = 1e-4, 2e-2  # differences of log-probs from transformers': the largest in float32, the mean in bf16
ABOVE = 1.25  # the measured peak of a GPU's memory may be this times the estimate of a dry run
LINES = 60  # of the log of a run that failed
# on a GPU a larger model; both are trained on demonstrations for some seconds, on a CPU
TINY = {"agents": ["holder", "asker"], "steps": 100, "good": 0.3}
LORA = {"model": {"lora_rank": 8, "lora_alpha": 16}, "actor": {"optim": {"lr": 1e-2}}}
TINY_GPU = {**TINY, "steps": 40, "hidden": 256, "layers": 4, "heads": 4, "head_dim": 64, "mlp": 512}

Record = Callable[[str, Any], None]
Lines = Sequence[Mapping[str, float]]


@dataclass(frozen=True)
class Place:
    """The folder of models and runs, and the hardware: `gpu` is false on a CPU, where `gpus` are logical slots."""

    work: Path
    gpus: int
    gpu: bool


@pytest.fixture(scope="session", autouse=True)
def facts(record_testsuite_property: Record) -> None:
    hardware = f"{os.environ[GPUS]} {'GPU' if has_accelerator() else 'CPU'}"
    values = {"marl_verl": __version__, "hardware": hardware, "machine": machine()}
    for name, value in {**values, "packages": packages((*PACKAGES, "flash-attn", "triton"))}.items():
        record_testsuite_property(name, json.dumps(value))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.getbasetemp(), int(os.environ[GPUS]), has_accelerator())


@pytest.fixture(autouse=True)
def time_limit(request: pytest.FixtureRequest) -> Iterator[None]:
    """End a check after its `seconds`: as after Ctrl-C, a run then ends its processes."""
    (seconds,) = request.node.get_closest_marker("gpu").args

    def up(*_: object) -> None:
        raise TimeoutError(f"not finished after {seconds} s")

    before = signal.signal(signal.SIGALRM, up)
    signal.alarm(seconds)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.gpu(300)
def test_versions(record_property: Record) -> None:
    """no error of `marl-verl doctor`; torch, vLLM and verl load"""
    from marl_verl_diagnose.doctor.command import findings

    results = list(findings())
    for state in ("warning", "error"):
        if lines := [f"{result.check}: {result.message}" for result in results if result.state == state]:
            record_property(f"{state}s", lines)
            assert state == "warning", "; ".join(lines)


@pytest.mark.gpu(300)
def test_log_probs(place: Place, record_property: Record) -> None:
    """verl's engine gives the log-probs of transformers in float32, however rows are batched: mean difference below
    2e-2 in bf16, largest below 1e-4 in float32; the same gradient; on a GPU, at most 1.25 times the estimated memory"""
    command = [sys.executable, "-m", "marl_verl_diagnose.selftest.log_probs", str(place.work)]
    with Path(place.work, "log-probs.log").open("w+b") as log:
        code = subprocess.run(command, stdout=log, stderr=log, check=False).returncode
        log.seek(0)
        print(log.read().decode(errors="replace"))
    assert code == 0, f"its process ended with exit code {code}"
    passes = json.loads(Path(place.work, "log-probs.json").read_text())
    record_property("passes", passes)
    name, limit = ("mean", MEAN) if place.gpu else ("largest", LARGEST)
    for row in (row for row in passes if "skipped" not in row):
        label = f"{row['batch']}, {row['tokens']} tokens, entropy {row['entropy']}"
        assert math.isfinite(row["grad norm"]) and row["grad norm"] > 0, f"{label}: gradient {row['grad norm']}"  # noqa: PT018
        assert row[name] < limit, f"{label}: log-probs differ from transformers' by {row[name]:.2g} ({name})"
        peak, estimate = row["peak GiB"], row["estimate GiB"]
        assert peak < ABOVE * estimate, f"{label}: {peak:.1f} GiB were needed, and the estimate is {estimate:.1f}"
    for tokens in {row["tokens"] for row in passes}:
        norms = [row["grad norm"] for row in passes if row["tokens"] == tokens and "skipped" not in row]
        assert max(norms) < 1.01 * min(norms), f"{tokens} tokens: the norms of the gradients are {norms}"


@pytest.mark.gpu(600)
def test_colocated(place: Place, record_property: Record) -> None:
    """two policies on one pool train; sampled and recomputed log-probs differ by less than 0.02; on a GPU, the memory
    in use while the servers sleep stays within 256 MiB"""
    run, used = colocated(place)
    lines = learnt(run, range(1, STEPS + 1), ("holder", "asker"), record_property)
    record_property("seconds to the first step", run.summary["seconds_to_first_step"] if run.summary else None)
    agreed(lines, ("holder", "asker"), record_property)
    record_property("MiB in use while the servers sleep", used)
    assert used or not place.gpu, "nvidia-smi did not report the memory in use"
    assert not used or max(used) - min(used) <= SPREAD, f"while the servers sleep, {used} MiB are in use: not constant"


@pytest.mark.gpu(600)
def test_resume(place: Place, record_property: Record) -> None:
    """the run continues from its checkpoint, and log-probs agree as before"""
    run, _ = colocated(place)
    last = max(run.checkpoints)
    run = train(resume=run, overrides={"trainer.total_training_steps": last + 1})
    lines = learnt(run, [last + 1], ("holder", "asker"), record_property)
    agreed(lines, ("holder", "asker"), record_property)


@pytest.mark.gpu(600)
def test_lora(place: Place, record_property: Record) -> None:
    """an adapter trains beside a frozen policy, and reaches the servers"""
    lines = learnt(adapter(place), range(1, STEPS + 1), ("holder",), record_property)
    agreed(lines, ("holder",), record_property)
    trained_too = [name for name in lines[-1] if name.startswith("policy/asker/")]
    assert not trained_too, f"the frozen policy has metrics of training: {trained_too}"


@pytest.mark.gpu(600)
def test_mappo(place: Place, record_property: Record) -> None:
    """a critic trains beside the adapter"""
    lines = learnt(adapter(place), range(1, STEPS + 1), ("holder",), record_property)
    for name in ("vf_loss", "grad_norm", "explained_variance"):
        values = [line[f"critic/team/{name}"] for line in lines]
        record_property(f"critic: {name}", values)
        assert all(map(math.isfinite, values)), f"critic: {name} is {values}"
    assert max(line["critic/team/grad_norm"] for line in lines) > 0, "the critic has no gradient"


@pytest.mark.gpu(600)
def test_shared_base(place: Place, record_property: Record) -> None:
    """two policies train adapters on one base model, with one server"""
    policies = {name: {"base": "shared", **LORA} for name in ("holder", "asker")}
    run = trained(place, "shared-base", recipe(place, policies, eager=True))
    lines = learnt(run, range(1, STEPS + 1), policies, record_property)
    agreed(lines, policies, record_property)


@pytest.mark.gpu(600)
def test_async(place: Place, record_property: Record) -> None:
    """a policy trains while sampling continues"""
    content = recipe(place, {"both": {}}, pool=False, eager=True)
    content["marl"]["schedule"] = {"mode": "async", "fill": 32 * place.gpus, "batch": 16 * place.gpus}
    lines = learnt(trained(place, "async", content), range(1, STEPS + 1), ("both",), record_property)
    counts = ("updates", "trained_rows", "stale_dropped")
    totals = {name: sum(line[f"policy/both/{name}"] for line in lines) for name in counts}
    for name, total in totals.items():
        record_property(name, total)
    assert totals["updates"] > 1, f"{totals['updates']:.0f} updates in {STEPS} steps"


@pytest.mark.gpu(600)
def test_export_eval(place: Place, record_property: Record) -> None:
    """transformers loads an exported policy, whose weights have changed; `marl-verl eval` repeats the run's own
    validation: equal in float32, within 2 tasks in bf16"""
    import torch
    from marl_verl_inspect.export import choose, export
    from transformers import AutoModelForCausalLM

    run, _ = colocated(place)
    output = place.work / "exported"
    export(choose(run.folder, "asker", STEPS), output)
    source = run.config.policies.asker.actor_rollout_ref.model.path
    after, before = (dict(AutoModelForCausalLM.from_pretrained(path).named_parameters()) for path in (output, source))
    with torch.no_grad():
        change = max(float((after[name].float() - before[name].float()).abs().max()) for name in before)
    record_property("largest change of a weight", change)
    assert set(after) == set(before), "the exported model has other weights than the initial one"
    assert 0 < change < 1, f"the largest change of a weight is {change}"
    validated = next(m for m in run.metrics if m["step"] == STEPS and "validation/success" in m)["validation/success"]
    evaluated = evaluate(run, step=STEPS, greedy_only=True).success
    record_property("success, run's validation and eval", [validated, evaluated])
    apart = abs(evaluated - validated) * TASKS
    assert apart < (2.5 if place.gpu else 0.5), f"eval solves {apart:.0f} of {TASKS} tasks more or fewer than the run"


def recipe(place: Place, policies: Mapping[str, Any], pool: bool = True, eager: bool = False) -> dict[str, Any]:
    """A recipe of the inventory task; `policies`: name -> settings, for its agent or both; `eager`: no CUDA graphs."""
    common = {"tiny": TINY_GPU if place.gpu else TINY, **({"pool": "all"} if pool else {})}
    # a loss with importance weights: its metrics compare sampled and recomputed log-probs
    settings = {name: {"loss": "ppo-clip-tis", **common, **section} for name, section in policies.items()}
    settings = {name: {k: v for k, v in section.items() if v is not None} for name, section in settings.items()}
    agents = {name: {"policy": name if name in policies else next(iter(policies))} for name in ("holder", "asker")}
    return {
        "marl": {
            "task": {"name": "inventory", "train_size": 512, "test_size": TASKS},
            "workflow": {"name": "inventory"},
            "agents": agents,
            "policies": settings,
            "pools": {"all": {"gpus": place.gpus}} if pool else {},
        },
        "data": {"train_batch_size": 8, "max_prompt_length": 48, "max_response_length": 8},
        "actor_rollout_ref": {
            "actor": {"ppo_mini_batch_size": 8, "optim": {"lr": 1e-3}},
            "rollout": {"max_model_len": 64, "gpu_memory_utilization": 0.3, "enforce_eager": eager or not place.gpu},
        },
        "trainer": {
            "n_gpus_per_node": place.gpus,
            "total_training_steps": STEPS,
            "save_freq": STEPS,
            "test_freq": STEPS,
            "val_before_train": False,
        },
    }


def trained(place: Place, name: str, content: dict[str, Any], **options: Any) -> Run:
    """The run of that name, which another check may have trained already."""
    folder = place.work / "runs" / name
    if folder.exists():
        assert (folder / "summary.json").is_file(), f"run '{name}' has failed in an earlier check"
        return load_run(folder)
    try:
        return train(content, {"marl.run.dir": str(folder.parent), "marl.run.name": name}, **options)
    except RunError as error:
        print(*error.log.read_text(errors="replace").splitlines()[-LINES:], sep="\n")
        raise


def colocated(place: Place) -> tuple[Run, list[int]]:
    """Two policies on one pool; and the lowest use of the GPU's memory in each step after the first, in MiB, when the
    servers sleep and no policy has loaded yet; [] where the run has been trained before, or without a GPU."""
    ends: list[float] = []
    plain = Display()

    def event(values: Event) -> None:
        if values["event"] == "step":
            ends.append(time.time())
        plain.event(values)

    with gpu_memory() as samples:
        content = recipe(place, {"holder": {}, "asker": {}})
        run = trained(place, "colocated", content, progress=Display(callback=event))
    steps = itertools.pairwise(ends if samples else ())
    return run, [min((used for at, used in samples if first < at <= last), default=0) for first, last in steps]


def adapter(place: Place) -> Run:
    """LoRA beside a frozen policy on one pool, with the critic of MAPPO."""
    content = recipe(place, {"holder": LORA, "asker": {"frozen": True, "loss": None}}, eager=True)
    tiny = {**(TINY_GPU if place.gpu else TINY), "steps": 20}
    content["marl"] |= {"algorithm": {"name": "mappo"}, "critic": {"tiny": tiny}}
    return trained(place, "adapter", content)


def learnt(run: Run, steps: Sequence[int], policies: Iterable[str], record: Record) -> list[dict[str, float]]:
    """Check that these steps were trained and that each policy has gradients. Returns their metrics."""
    lines = [line for line in run.metrics if "train/success" in line and line["step"] in steps]
    done = [int(line["step"]) for line in lines]
    assert done == list(steps), f"steps {done} were trained, not {list(steps)}"
    seconds = [line["seconds/step"] for line in lines]
    record("seconds per step", seconds)
    record("tokens per second of the run", sum(line["train/tokens"] for line in lines) / sum(seconds))
    for name in policies:
        norms = [line[f"policy/{name}/grad_norm"] for line in lines if f"policy/{name}/grad_norm" in line]
        finite = bool(norms) and all(map(math.isfinite, norms)) and max(norms) > 0
        assert finite, f"gradient norms of policy '{name}': {norms}"
        memory = [line.get(f"policy/{name}/perf/max_memory_allocated_gb", 0.0) for line in lines]
        record(f"{name}: peak memory of training, GiB", max(memory))
    return lines


def agreed(lines: Lines, policies: Iterable[str], record: Record) -> None:
    """Check sampled against recomputed log-probs: mean over rows of the difference per token."""
    for name in policies:
        apart = [line[f"policy/{name}/rollout_corr/log_ppl_abs_diff"] for line in lines]
        record(f"{name}: sampled against recomputed log-probs", apart)
        assert max(apart) < DIFFERENCE, f"log-probs of policy '{name}' differ by {max(apart):.3g} nats per token"


@contextmanager
def gpu_memory() -> Iterator[list[tuple[float, int]]]:
    """Record (time, MiB in use on the first GPU) ten times a second; nothing without nvidia-smi."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--loop-ms=100", f"--id={first}"]
    try:
        process = subprocess.Popen(query, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    except FileNotFoundError:
        yield []
        return
    samples = list[tuple[float, int]]()

    def read() -> None:
        for line in process.stdout or ():
            if line.strip().isdigit():
                samples.append((time.time(), int(line)))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield samples
    finally:
        process.kill()
        process.wait()
        reader.join()
