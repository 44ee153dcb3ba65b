"""Estimate of the memory and disk that a run needs, from its config and its models' configs. No weights are loaded.

A rank is one of the n GPUs (processes on a CPU) that share a policy. P are its model's parameters, D the trained ones
(all, or those of the adapter), w bytes a parameter (`fsdp_config.model_dtype`), a bytes an activation
(`mixed_precision.param_dtype`), T tokens of a micro-batch, L layers, h hidden size, k width of the keys, m of the
MLP, V vocabulary, c = 1 with gradient checkpointing, else L. Bytes on each rank:

    weights      w P / n
    gradients    w D / n
    optimiser    2 w D / n                            Adam's moments
    gathered     a (2 (P - ends) / L + ends)          FSDP's copies of two layers, embeddings and output layer on a GPU;
                 a P                                  of all parameters, without `reshard_after_forward`
    activations  a T (L h + c (8 h + 2 k + 4 m))      the MLP of a mixture of experts: of the experts used by a token
    mask         3 T^2                                packed rows without flash-attn, on a GPU
    logits       T V (8.5 if a = 2, 16 if a = 4)      and 12 T V for an entropy with gradient; 0 with fused kernels

Policies are updated one after another, so that of `DURING` only the most counts. The bytes of a logit were measured
with verl's functions, the processes on a CPU in runs of tiny models and SmolLM2. Servers on a GPU sleep meanwhile, or
have their `gpu_memory_utilization` of it. The estimate leaves out what it does not know, and is rather too small.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
from omegaconf import DictConfig, OmegaConf

from marl_verl.config.backend import is_local
from marl_verl.config.hardware import has_accelerator, on_gpu
from marl_verl.config.loss import updates_per_batch
from marl_verl.config.placement import Pool, pools_of, server_gpus
from marl_verl.errors import MarlError
from marl_verl.models.count import Model, sizes
from marl_verl.models.sources import ModelToMake
from marl_verl.team import TeamConfig

GIB = 1 << 30
ASSUMED_GPU = 80 * GIB
RUN, WORKER, SERVER = 2.3 * GIB, 0.6 * GIB, 0.9 * GIB
"""Processes on a CPU without their models: command line, driver, rollout worker, Ray; a training worker; a server."""
PROCESS = 0.8 * GIB
"""The process of a run with `marl.run.backend=local`, without its models."""
CONTEXT = 1.0 * GIB
"""Of each process on a GPU: CUDA, NCCL, graphs."""
DURING = ("gradients", "gathered layers", "activations", "mask", "logits")
TIGHT = 0.9
REMEDY = (
    "use more GPUs, lower actor.ppo_max_token_len_per_gpu, or set model.lora_rank or actor.fsdp_config.model_dtype=bf16"
)


@dataclass(frozen=True)
class Need:
    """What one device (or the machine) needs at one time: bytes by part, and the bytes that it has.

    `real`: the device is one of this machine; otherwise the need is only printed.
    """

    where: str
    parts: Mapping[str, float]
    room: float
    real: bool = True

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    def __str__(self) -> str:
        parts = sorted(self.parts.items(), key=lambda part: -part[1])
        shown = ", ".join(f"{name} {size / GIB:.1f}" for name, size in parts[:5] if size > 0.02 * self.total)
        fit = "; may not fit" if self.total <= self.room else "; does not fit"
        fit = "" if self.total <= TIGHT * self.room else fit
        room = f" of {self.room / GIB:.0f}" if self.room < float("inf") else ""
        return f"{self.where}: {self.total / GIB:.1f}{room} GiB ({shown}){fit}"

    def check(self) -> None:
        """MarlError where the need is certainly more than this machine has."""
        if self.real and self.total > self.room:
            name, size = max(self.parts.items(), key=lambda part: part[1])
            there = f"{self.total / GIB:.1f} GiB are needed, and {self.room / GIB:.1f} GiB are there"
            remedy = "lower marl.checkpoint.keep" if self.where.startswith("disk") else REMEDY
            raise MarlError(f"{self.where}: about {there}. Largest part: {name}, {size / GIB:.1f} GiB. {remedy}.")


def training(
    model: Model, part: DictConfig, fsdp: DictConfig, ranks: int, tokens: float, gpu: bool
) -> dict[str, float]:
    """Bytes on each rank while a model is trained; `part` is an `actor_rollout_ref` or `critic` section."""
    kept = _bytes(fsdp)
    mixed = (fsdp.get("mixed_precision") or {}).get("param_dtype", "bf16")
    width = 4 if mixed in ("fp32", "float32") else 2
    layers = 1 if part.model.enable_gradient_checkpointing else model.layers
    inner = 8 * model.hidden + 2 * model.keys + 4 * model.mlp
    state = 0 if fsdp.offload_policy else kept / ranks
    need = {
        "weights": state * model.parameters,
        "gradients": state * model.trained,
        "optimiser": 2 * state * model.trained,
        "activations": width * tokens * (model.layers * model.hidden + layers * inner),
    }
    if not fsdp.reshard_after_forward and width < kept:
        need["gathered layers"] = width * model.parameters
    elif gpu:
        need["gathered layers"] = width * (2 * (model.parameters - model.ends) / model.layers + model.ends)
    if gpu and part.model.use_remove_padding and part.model.override_config.get("attn_implementation") == "sdpa":
        need["mask"] = 3 * tokens**2
    actor = part.get("actor")
    if actor is not None and not part.model.use_fused_kernels:  # a critic has one value a token
        entropy = 12 if (actor.calculate_entropy or actor.entropy_coeff) and not fsdp.entropy_checkpointing else 0
        need["logits"] = tokens * model.vocabulary * ((8.5 if width == 2 else 16) + entropy)
    return need


def _bytes(fsdp: DictConfig) -> int:
    """Bytes of a parameter as it is stored."""
    return 2 if fsdp.model_dtype in ("bf16", "bfloat16", "fp16", "float16") else 4


def estimate(
    resolved: DictConfig, team: TeamConfig, made: Mapping[str, ModelToMake], rows: Mapping[str, int], folder: Path
) -> list[Need]:
    """The needs of a run, with the policy's `rows` of a batch; models whose config cannot be read are left out."""
    parts = {name: section.actor_rollout_ref for name, section in resolved.policies.items()}
    models = {name: sizes(part.model, made.get(name)) for name, part in parts.items()}
    known = {name: model for name, model in models.items() if model is not None}
    local, gpu, size = is_local(resolved), on_gpu(resolved), gpu_bytes()
    here = size is not None and resolved.ray_kwargs.ray_init.get("address") in (None, "local")
    pools = [Pool("the run", 1, 1, tuple(known), True)] if local else pools_of(resolved, team)
    kept: dict[str, float] = {"process": PROCESS} if local else {"processes": RUN}
    moments: list[dict[str, float]] = [{}]
    needs = []
    for pool in pools:
        if gpu:
            kept, moments = {"contexts": 2 * CONTEXT * len(pool.policies)}, [{}]
        for name in [name for name in pool.policies if name in known and team.alike(name)[0] == name]:
            part, model, ranks = parts[name], known[name], 1 if gpu else pool.size
            if not local:
                kept |= {f"{label} of {name}'s server": bytes for label, bytes in _server(part, model, pool, gpu)}
            learners = {}
            if team.policies[name].trained:
                longest = int(part.rollout.prompt_length) + int(part.rollout.response_length)
                most = rows.get(name, 0) * longest / updates_per_batch(resolved, part.actor) / pool.size
                tokens = min(_tokens(part, longest), most or float("inf"))
                learners[name] = training(model, part, part.actor.fsdp_config, pool.size, tokens, gpu)
                if not gpu and not local:
                    kept[f"processes of {name}'s training"] = WORKER * pool.size
            elif local:
                kept[f"weights of {name}"] = _width(part.rollout) * model.parameters
            for critic in [critic.critic for critic in resolved.critics.values() if critic.policy == name]:
                own = sizes(critic.model) or model
                learners[f"{name}'s critic"] = training(own, critic, critic.fsdp, pool.size, 0, gpu)
            for learner, need in learners.items():
                whole = {f"{label} of {learner}": ranks * bytes for label, bytes in need.items()}
                moments.append({label: bytes for label, bytes in whole.items() if label.startswith(DURING[local:])})
                kept |= {label: bytes for label, bytes in whole.items() if label not in moments[-1]}
        if gpu:
            most_of = kept | max(moments, key=lambda moment: sum(moment.values()))
            needs.append(Need("the GPU" if local else f"each GPU of {pool.name}", most_of, size or ASSUMED_GPU, here))
    if not gpu:
        most_of = kept | max(moments, key=lambda moment: sum(moment.values()))
        needs.append(Need("this process" if local else "this machine", most_of, available()))
    return needs + _disk(resolved, team, parts, known, folder)


def _server(part: DictConfig, model: Model, pool: Pool, gpu: bool) -> Iterator[tuple[str, float]]:
    """What a server has while policies learn; on a GPU nothing if it sleeps."""
    rollout = part.rollout
    if gpu:
        if not (rollout.free_cache_engine and rollout.get("enable_sleep_mode", True)):
            yield "share", float(rollout.gpu_memory_utilization) * (gpu_bytes() or ASSUMED_GPU)
        return
    row = int(rollout.prompt_length) + int(rollout.response_length)
    token = 2.0 * _width(rollout) * model.layers * model.keys / server_gpus(rollout)
    cache = OmegaConf.select(rollout, "engine_kwargs.vllm.kv_cache_memory_bytes") or GIB
    yield "processes", SERVER * pool.size / server_gpus(rollout)
    yield "weights", _width(rollout) * model.parameters / server_gpus(rollout)
    yield "keys", min(cache, token * row * int(rollout.max_num_seqs))


def _width(rollout: DictConfig) -> int:
    return 4 if rollout.dtype in ("float32", "fp32") else 2


def _disk(
    resolved: DictConfig, team: TeamConfig, parts: Mapping[str, DictConfig], models: Mapping[str, Model], folder: Path
) -> list[Need]:
    """What checkpoints and snapshots need, of weights or adapter, Adam's moments, and a copy for transformers."""
    if resolved.trainer.save_freq <= 0:
        return []
    steps, often = int(resolved.trainer.total_training_steps), int(resolved.trainer.save_freq)
    copies = min(int(resolved.marl.checkpoint.keep) + 1, -(-steps // often))
    disk: dict[str, float] = {}
    for name in [name for name in models if team.policies[name].trained]:
        actor, kept = parts[name].actor, _bytes(parts[name].actor.fsdp_config)
        whole = kept * models[name].parameters if "hf_model" in actor.checkpoint.save_contents else 0
        disk[f"checkpoints of {name}"] = copies * (3.0 * kept * models[name].trained + whole)
    for past in (past for past in team.past.values() if past.of in models):
        disk[f"snapshots of {past.of}"] = (
            past.size * float(_bytes(parts[past.of].actor.fsdp_config)) * models[past.of].trained
        )
    parent = next(path for path in (folder, *folder.resolve().parents) if path.exists())
    old = sum(path.stat().st_size for path in folder.glob("checkpoints/**/*") if path.is_file())  # of a resumed run
    real = not has_accelerator() or gpu_bytes() is not None
    return [Need(f"disk of '{parent}'", disk, shutil.disk_usage(parent).free + old, real)]


def _tokens(part: DictConfig, longest: int) -> float:
    """The most tokens of a micro-batch on a rank."""
    actor = part.actor
    if actor.use_dynamic_bsz:
        return float(actor.ppo_max_token_len_per_gpu)
    return float(actor.ppo_micro_batch_size_per_gpu * longest / actor.ulysses_sequence_parallel_size)


def trainable(room: float) -> tuple[float, float]:
    """Parameters of the largest models that a GPU can train, whole and with an adapter, in float32."""
    return 0.75 * room / 16, 0.75 * room / 4  # the rest is for activations and logits


def available(cgroup: Path = Path("/sys/fs/cgroup")) -> float:
    """Free memory of this machine, or of the container that limits it."""
    free, limit, used = psutil.virtual_memory().available, cgroup / "memory.max", cgroup / "memory.current"
    if limit.is_file() and used.is_file() and (text := limit.read_text().strip()).isdigit():
        free = min(free, int(text) - int(used.read_text()))
    return float(free)


def gpu_bytes() -> float | None:
    """The memory of this machine's smallest GPU, from NVIDIA's driver; None without one."""
    if shutil.which("nvidia-smi") is None:
        return None
    query = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return None
    sizes = [int(line) for line in done.stdout.split() if line.isdigit()]
    return float(min(sizes) * (1 << 20)) if sizes and not done.returncode else None
