"""Estimate of the memory and disk that a run needs, from its config and its models' configs. No weights are loaded.

A rank is one of the n GPUs (processes on a CPU) that share a policy. P are its model's parameters, D the trained ones
(all, or those of the adapter), w bytes a parameter (`fsdp_config.model_dtype`), a bytes an activation
(`mixed_precision.param_dtype`), T tokens of a micro-batch, L layers, h hidden size, k width of the keys, m of the
MLP, V vocabulary, c = 1 with gradient checkpointing, else L. Bytes on each rank:

    weights      w P / n
    gradients    w D / n
    optimiser    2 w D / n                            Adam's moments
    adapters     3 w D / n                            of each other policy on the same base model (`base: shared`)
    gathered     a (2 (P - ends) / L + ends)          FSDP's copies of two layers, embeddings and output layer on a GPU;
                 a P                                  of all parameters, without `reshard_after_forward`
    activations  a T (L h + c (8 h + 2 k + 4 m))      the MLP of a mixture of experts: of the experts used by a token
    mask         3 T^2                                packed rows without flash-attn, on a GPU
    logits       T V (8.5 if a = 2, 16 if a = 4)      and 12 T V for an entropy with gradient; 0 with fused kernels

The bytes of a logit were measured with verl's functions, the processes on a CPU in runs of tiny models and SmolLM2.
On a CPU, policies of large models are updated one after another, so that of `DURING_AN_UPDATE` only the most counts.
So are all policies with `marl.run.backend=local`, one process with one copy of the weights.
A server on a GPU has `gpu_memory_utilization` of it, for its weights and at least one row's keys and values, 2 k L a
token. `param_offload` and `optimizer_offload` free a GPU between a policy's updates, not during them. Host memory holds
what is offloaded, and the reference model of a KL loss. The estimate leaves out what it does not know, and is rather
too small.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from omegaconf import DictConfig, OmegaConf

from marl_verl.config.backend import is_local
from marl_verl.config.hardware import has_accelerator, on_gpu
from marl_verl.config.loss import updates_per_batch
from marl_verl.config.model_settings import LARGE
from marl_verl.config.placement import Pool, pools_of, server_gpus
from marl_verl.errors import MarlError
from marl_verl.models.sizes import Model, sizes
from marl_verl.models.sources import ModelToMake
from marl_verl.team import TeamConfig

GIB = 1 << 30
ASSUMED_GPU = 80 * GIB
RUN, WORKER, SERVER = 2.3 * GIB, 0.6 * GIB, 0.9 * GIB
"""Processes on a CPU without their models: command line, driver, rollout worker, Ray; a training worker; a server."""
PROCESS = 0.8 * GIB
"""The process of a run with `marl.run.backend=local`, without its models."""
DURING_AN_UPDATE = ("gradients", "gathered layers", "activations", "logits")
CONTEXT = 1.0 * GIB
"""Of each process on a GPU: CUDA, NCCL, graphs."""
TIGHT = 0.9
ADVICE = {
    "logits": "lower actor.ppo_max_token_len_per_gpu, or set model.use_fused_kernels=true on a GPU",
    "activations": "lower actor.ppo_max_token_len_per_gpu, or set model.enable_gradient_checkpointing=true",
    "mask": "lower actor.ppo_max_token_len_per_gpu, or install flash-attn",
    "server": "lower rollout.gpu_memory_utilization, or set actor.fsdp_config.param_offload and optimizer_offload",
    "served": "raise rollout.gpu_memory_utilization or tensor_model_parallel_size, or lower rollout.max_model_len",
    "offloaded": "use more nodes (trainer.nnodes, or nodes of a pool)",
    "reference": "set actor.use_kl_loss=false",
    "processes": "close other programs, or let the agents share a policy",
    "checkpoints": "lower marl.checkpoint.keep, or set another marl.run.dir",
}
SMALLER = "set model.lora_rank, or actor.fsdp_config.model_dtype=bf16"


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
            more = "use more GPUs (trainer.n_gpus_per_node), or " if has_accelerator() else ""
            advice = ADVICE.get(name.split(" ")[0], f"{more}{SMALLER}")
            there = f"{self.total / GIB:.1f} GiB are needed, and {self.room / GIB:.1f} GiB are there"
            raise MarlError(
                f"{self.where}: about {there}. Largest part: {name}, {size / GIB:.1f} GiB. To lower it, {advice}."
            )


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


def resident(need: Mapping[str, float], fsdp: DictConfig) -> dict[str, float]:
    """What is left of `training` on a GPU between updates."""
    freed = {"weights": fsdp.param_offload, "optimiser": fsdp.optimizer_offload}
    return {name: need[name] for name, free in freed.items() if not free}


def in_host(model: Model, part: DictConfig, need: Mapping[str, float], ranks: int) -> dict[str, float]:
    """Bytes of `training` on a GPU that each rank has in host memory, and of the reference model."""
    fsdp, own = part.actor.fsdp_config, {}
    if fsdp.offload_policy:
        own["offloaded state"] = 4.0 * _bytes(fsdp) * model.parameters / ranks
    else:
        moved = {"weights": fsdp.param_offload, "optimiser": fsdp.optimizer_offload}
        own = {f"offloaded {name}": need[name] for name, away in moved.items() if away}
    if part.actor.use_kl_loss and not model.adapter:
        own["reference model"] = float(_bytes(part.ref.fsdp_config)) * model.parameters / ranks
    return own


def _bytes(fsdp: DictConfig) -> int:
    """Bytes of a parameter as it is stored."""
    return 2 if fsdp.model_dtype in ("bf16", "bfloat16", "fp16", "float16") else 4


def served(model: Model, rollout: DictConfig) -> tuple[float, float]:
    """Bytes of a server's weights, and of the keys and values of one token, on each of its GPUs."""
    width = 4 if rollout.dtype in ("float32", "fp32") else 2
    gpus = server_gpus(rollout)
    return width * model.parameters / gpus, 2.0 * width * model.layers * model.keys / gpus


def estimate(
    resolved: DictConfig, team: TeamConfig, made: Mapping[str, ModelToMake], rows: Mapping[str, int], folder: Path
) -> list[Need]:
    """The needs of a run, with the policy's `rows` of a batch; models whose config cannot be read are left out."""
    parts = {name: section.actor_rollout_ref for name, section in resolved.policies.items()}
    models = {name: sizes(part.model, made.get(name)) for name, part in parts.items()}
    known = {name: model for name, model in models.items() if model is not None}
    if is_local(resolved):
        needs = [_one_process(resolved, team, parts, known, rows)]
    else:
        needs = list(_memory(resolved, team, pools_of(resolved, team), parts, known, rows))
    parent = next(path for path in (folder, *folder.resolve().parents) if path.exists())
    copies = int(resolved.marl.checkpoint.keep) + 1
    if resolved.trainer.save_freq > 0:
        copies = min(copies, -(-int(resolved.trainer.total_training_steps) // int(resolved.trainer.save_freq)))
        saved = {name: model for name, model in known.items() if team.policies[name].trained}
        disk = {f"checkpoints of {name}": copies * checkpoint(model, parts[name]) for name, model in saved.items()}
        for past in (past for past in team.past.values() if past.of in known):
            snapshot = float(_bytes(parts[past.of].actor.fsdp_config)) * known[past.of].trained
            disk[f"snapshots of {past.of}"] = past.size * snapshot
        real = not has_accelerator() or gpu_bytes() is not None
        old = sum(path.stat().st_size for path in folder.glob("checkpoints/**/*") if path.is_file())  # of a resumed run
        needs.append(Need(f"disk of '{parent}'", disk, shutil.disk_usage(parent).free + old, real))
    return needs


def checkpoint(model: Model, part: DictConfig) -> float:
    """Bytes of a policy's checkpoint: weights or adapter, Adam's moments, and a copy for transformers."""
    kept = _bytes(part.actor.fsdp_config)
    whole = kept * model.parameters if "hf_model" in part.actor.checkpoint.save_contents else 0
    return 3.0 * kept * model.trained + whole


def _one_process(
    resolved: DictConfig,
    team: TeamConfig,
    parts: Mapping[str, DictConfig],
    models: Mapping[str, Model],
    rows: Mapping[str, int],
) -> Need:
    """The memory of a process that samples with the weights that it trains."""
    gpu, room = on_gpu(resolved), gpu_bytes()
    held, busiest = {"process": PROCESS + (CONTEXT if gpu else 0)}, dict[str, float]()
    for name in [name for name in models if team.alike(name)[0] == name]:
        if not team.policies[name].trained:
            held[f"weights of {name}"] = served(models[name], parts[name].rollout)[0]
            continue
        learning = {name: _learning(resolved, team, name, parts[name], models[name], 1, rows.get(name, 0), gpu)}
        learning |= _critics(resolved, name, models[name], 1, gpu)
        for learner, need in learning.items():
            held |= {f"{part} of {learner}": size for part, size in need.items() if part not in DURING_AN_UPDATE[1:]}
            moment = {f"{part} of {learner}": need[part] for part in DURING_AN_UPDATE[1:] if part in need}
            busiest = max(busiest, moment, key=lambda parts: sum(parts.values()))
    if gpu:
        return Need("the GPU", held | busiest, room or ASSUMED_GPU, room is not None)
    return Need("this process", held | busiest, available())


def _learning(
    resolved: DictConfig,
    team: TeamConfig,
    name: str,
    part: DictConfig,
    model: Model,
    ranks: int,
    rows: int,
    gpu: bool,
) -> dict[str, float]:
    """Bytes on each rank while policy `name` is trained on `rows` of a batch, with the adapters on the same base."""
    longest = int(part.rollout.prompt_length) + int(part.rollout.response_length)
    most = rows * longest / updates_per_batch(resolved, part.actor) / ranks
    fsdp = part.actor.fsdp_config
    need = training(model, part, fsdp, ranks, min(_tokens(part, longest), most or float("inf")), gpu)
    if (more := len(team.alike(name)) - 1) > 0:
        need["other adapters"] = 3.0 * more * _bytes(fsdp) * model.trained / ranks
    return need


def _critics(resolved: DictConfig, policy: str, model: Model, ranks: int, gpu: bool) -> dict[str, dict[str, float]]:
    """Critic on the devices of a policy -> bytes on each rank while it is trained, without its activations."""
    critics = [critic.critic for critic in resolved.critics.values() if critic.policy == policy]
    return {
        f"{policy}'s critic": training(sizes(critic.model) or model, critic, critic.fsdp, ranks, 0, gpu)
        for critic in critics
    }


def _memory(
    resolved: DictConfig,
    team: TeamConfig,
    pools: Sequence[Pool],
    parts: Mapping[str, DictConfig],
    models: Mapping[str, Model],
    rows: Mapping[str, int],
) -> Iterator[Need]:
    gpu = on_gpu(resolved)
    host: dict[str, float] = {} if gpu else {"processes": RUN}
    busiest: dict[str, float] = {}
    room, start = gpu_bytes(), resolved.ray_kwargs.ray_init
    here = {"room": room or ASSUMED_GPU, "real": room is not None and start.get("address") in (None, "local")}
    for pool in pools:
        names = [name for name in pool.policies if name in models and team.alike(name)[0] == name]
        used = {name: float(parts[name].rollout.gpu_memory_utilization) for name in names}
        share = {f"server of {name}": part * here["room"] for name, part in used.items()}
        learning: dict[str, dict[str, float]] = {}
        kept: dict[str, float] = {}
        for name in names:
            part, model = parts[name], models[name]
            weights, token = served(model, part.rollout)
            longest = int(part.rollout.prompt_length) + int(part.rollout.response_length)
            if gpu:
                parts_of_server = {"served weights": weights, "served row": token * longest, "context": CONTEXT}
                where = f"server of {name}, share of a GPU"
                yield Need(where, parts_of_server, share[f"server of {name}"], bool(here["real"]))
            else:
                cache = OmegaConf.select(part.rollout, "engine_kwargs.vllm.kv_cache_memory_bytes") or GIB
                held = min(cache, token * longest * int(part.rollout.max_num_seqs))
                host[f"processes of {name}'s server"] = SERVER * pool.size / server_gpus(part.rollout)
                host[f"weights of {name}'s server"], host[f"keys of {name}'s server"] = weights, held
            if team.policies[name].trained:
                need = _learning(resolved, team, name, part, model, pool.size, rows.get(name, 0), gpu)
                learning[name] = need
                kept |= {f"{key} of {name}": size for key, size in resident(need, part.actor.fsdp_config).items()}
                if gpu:  # of each of its ranks on a node
                    away = in_host(model, part, need, pool.size)
                    host |= {f"{part} of {name}": size * pool.gpus for part, size in away.items()}
            for learner, need in _critics(resolved, name, model, pool.size, gpu).items():
                learning[learner] = need
                fsdp = next(critic.critic.fsdp for critic in resolved.critics.values() if critic.policy == name)
                kept |= {f"{key} of {learner}": size for key, size in resident(need, fsdp).items()}
        if not gpu:
            host |= {f"processes of {name}'s training": WORKER * pool.size for name in learning if name in names}
            for name, need in learning.items():
                whole = {f"{part} of {name}": size * pool.size for part, size in need.items()}
                if name in models and models[name].parameters >= LARGE:  # updated alone
                    moment = {label: whole.pop(label) for label in [*whole] if label.startswith(DURING_AN_UPDATE)}
                    busiest = max(busiest, moment, key=lambda parts: sum(parts.values()))
                host |= whole
            continue
        contexts = {"contexts": CONTEXT * (len(learning) + len(names))}
        if learning:
            yield Need(f"each GPU of {pool.name}, sampling", {**share, **kept}, **here)  # type: ignore[arg-type]
        awake = {name: size for name, size in share.items() if not _sleeps(parts[name.removeprefix("server of ")])}
        for name, need in learning.items():
            others = {label: size for label, size in kept.items() if not label.endswith(f" of {name}")}
            mine = {f"{part} of {name}": size for part, size in need.items()}
            where = f"each GPU of {pool.name}, training {name}"
            yield Need(where, {**mine, **others, **awake, **contexts}, **here)  # type: ignore[arg-type]
    if not gpu:
        yield Need("this machine", host | busiest, available())
    elif host:
        yield Need("host memory", host, available() if here["real"] else float("inf"))


def _tokens(part: DictConfig, longest: int) -> float:
    """The most tokens of a micro-batch on a rank."""
    actor = part.actor
    if actor.use_dynamic_bsz:
        return float(actor.ppo_max_token_len_per_gpu)
    return float(actor.ppo_micro_batch_size_per_gpu * longest / actor.ulysses_sequence_parallel_size)


def _sleeps(part: DictConfig) -> bool:
    return bool(part.rollout.free_cache_engine and part.rollout.get("enable_sleep_mode", True))


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
